"""Ads ranking: the daily retrain of a click model."""
