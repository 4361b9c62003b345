"""Knowledge that is kept in an R2R server: searched, answered from and filled over its HTTP interface."""
