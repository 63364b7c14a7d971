"""Who is compared: libraries, and the user's own code, behind one protocol."""
