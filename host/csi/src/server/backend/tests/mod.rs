//! The services over a backend that does what ids and names tell it to.

mod fake;
mod mutations;
mod table;
mod wire;
