"""The reference model: will this impression be clicked?"""
