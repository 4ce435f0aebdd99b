"""The record of a job in run storage: append, claim, read, without a database.

entries   one entry as JSON
fold      what the entries amount to: which of them count
state     what they say of the job, as plain values
log       numbered objects made by create-if-absent: a total order for any number of writers
record    the journal of one job
lease     who lives: heartbeats, and who watches them
index     open jobs and closed ones, without reading every journal
pointer   the champion of a model
keep      what is deleted with age, and what never is
"""
