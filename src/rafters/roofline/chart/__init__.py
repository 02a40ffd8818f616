"""The roofline drawn: in a terminal, as a picture, as a page. All three from the same `Chart`."""
