"""The exponential race: drafts without replacement are its first arrivals."""
