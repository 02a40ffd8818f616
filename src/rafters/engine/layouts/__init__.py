"""From the operands of a call to the form of its kernel, the values of its arguments and its grid."""
