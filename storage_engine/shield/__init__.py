"""The shield: further names, in our own directory, of segments that no lake proves yet."""
