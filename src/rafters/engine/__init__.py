"""A call -> checks -> layout -> variant -> plan -> launch; and the code generator."""
