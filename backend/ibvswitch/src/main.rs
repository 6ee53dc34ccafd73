//! The `ibvswitch` program.
fn main() {}
