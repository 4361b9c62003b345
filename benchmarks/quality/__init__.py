"""How good a conversion is: documents whose structure is known, and scores against what came out."""
