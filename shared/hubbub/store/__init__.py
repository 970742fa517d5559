"""What a party must still know after it died: the events that its machines took, in order."""
