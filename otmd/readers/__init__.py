"""Files that others wrote: data only, refused before they cost more memory than they are worth."""
