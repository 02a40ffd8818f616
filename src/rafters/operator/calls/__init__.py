"""How a call finds its plan: the generated function, the gate, the tables, new sizes, warming."""
