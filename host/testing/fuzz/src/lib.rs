//! Fuzz targets: the inputs that drivers, their vendors and storage arrays control, and those that a node reads
//! from its kernel, its tools and its disk.
//!
//! A target is a function that reads an input and asserts properties of what the host makes of it, such as
//! that an allowed URL has the granted host. libFuzzer calls it through a program in `fuzz/`, which is not in
//! the workspace (`make fuzz`); the test of this crate calls it with the files in `corpus/`. A found input
//! becomes a file there, with a name that says what it showed.
#![forbid(unsafe_code)]

mod component;
mod connection_info;
mod http;
mod message;
mod node;
mod node_record;
mod origins;
mod values;

pub use component::component;
pub use connection_info::connection_info;
pub use http::http;
pub use node::node;
pub use node_record::node_record;
pub use origins::origins;
pub use values::values;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets by name: the name of the corpus' directory and of the program.
pub const TARGETS: [(&str, Target); 7] = [
    ("component", component),
    ("connection_info", connection_info),
    ("http", http),
    ("node", node),
    ("node_record", node_record),
    ("origins", origins),
    ("values", values),
];
