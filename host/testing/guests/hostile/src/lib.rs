//! A backend that misbehaves. The settings `on-describe` and `on-probe`, the names of volumes, snapshots and
//! group snapshots, handles, the parameters of a validation, and the tokens of listings select the
//! misbehavior. The settings `name`, `version`, `topology-keys` and `features` are parts of its description.
//! The setting `echo` is a text, such as a secret, that it puts into responses, logs, stdout and stderr.
#![forbid(unsafe_code)]

mod abilities;
mod state;

use std::{hint::black_box, time::Duration};

use cofferdam_guest::{
    Backend, ConnectionInfo, CreateRequest, Description, Readiness, Result, StorageError, ValidateRequest,
    Validation, Volume, log, settings,
};

struct Hostile;

cofferdam_guest::export!(Hostile: snapshots, group_snapshots, listing, inspection);

impl Backend for Hostile {
    fn describe() -> Result<Description> {
        misbehave(&settings::get("on-describe").unwrap_or_default());
        let version = settings::get("version").unwrap_or("1".to_owned());
        let mut description =
            Description::new(settings::get("name").unwrap_or("hostile.example".to_owned()), version);
        description.topology_keys = setting_list("topology-keys");
        description.features = setting_list("features");
        Ok(description)
    }

    fn probe() -> Result<Readiness> {
        let how = settings::get("on-probe").unwrap_or_default();
        misbehave(&how);
        Ok(if how == "echo" { Readiness::NotReady(echo_message()) } else { Readiness::Ready })
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        misbehave(&request.name);
        let mut volume = Volume::new("a-volume", request.capacity.required_bytes.unwrap_or(1));
        match request.name.as_str() {
            "no-handle" => volume.handle.clear(),
            "long-handle" => volume.handle = "h".repeat(129),
            "inline-handle" => volume.handle = format!("csi-{}", "0123456789abcdef".repeat(4)),
            "control-handle" => volume.handle = "a\nb".to_owned(),
            "too-small" => volume.capacity_bytes = Some(1),
            "too-large" => volume.capacity_bytes = Some(u64::MAX),
            "large-context" => volume.context = vec![("k".to_owned(), "v".repeat(5000))],
            "repeated-key" => {
                volume.context = vec![("k".to_owned(), String::new()), ("k".to_owned(), String::new())]
            }
            "odd-topology" => volume.topology = vec![vec![("not a key".to_owned(), "v".to_owned())]],
            "odd-connection-info" => {
                volume.connection_info =
                    Some(ConnectionInfo { kind: "Di/rectory".to_owned(), version: 1, fields: Vec::new() });
            }
            "oversized" => volume.context = vec![("k".to_owned(), "v".repeat(8 << 20))],
            "many" => volume.topology = vec![vec![("k".to_owned(), "v".to_owned())]; 300_000],
            "echo-handle" => volume.handle = format!("id-{}", echo()),
            "echo-context" => volume.context = vec![("password".to_owned(), echo_message())],
            "echo-key" => volume.context = vec![(echo(), String::new()), (echo(), String::new())],
            "echo-kind" | "echo-connection-info" => {
                let kind = if request.name == "echo-kind" { echo_message() } else { "directory".to_owned() };
                volume.connection_info = Some(ConnectionInfo {
                    kind,
                    version: 1,
                    fields: vec![("path".to_owned(), echo_message())],
                });
            }
            "echo-topology" => volume.topology = vec![vec![(echo_message(), "v".to_owned())]],
            "echo-error" => return Err(StorageError::unavailable(echo_message())),
            "echo-log" => {
                log::info(echo_message());
                print_stderr(&echo_message());
                print_stdout(&echo_message());
            }
            "environment" => volume.context = environment_counts(),
            "long-message" => {
                return Err(StorageError::unavailable(format!("\u{1b}[31mé\n{}", "é".repeat(1 << 20))));
            }
            name => state::misuse_state(name)?,
        }
        Ok(volume)
    }

    fn delete_volume(handle: String) -> Result<()> {
        misbehave(&handle);
        Ok(())
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        for (key, value) in request.parameters {
            match key.as_str() {
                "misbehavior" => misbehave(&value),
                "echo" => return Ok(Validation::Refused(format!("the array knows {value} already"))),
                _ => {}
            }
        }
        Ok(Validation::Confirmed)
    }
}

fn echo() -> String {
    settings::get("echo").unwrap_or_default()
}

fn echo_message() -> String {
    format!("the array says: {}.", echo())
}

/// Counts what the guest can see of its environment.
fn environment_counts() -> Vec<(String, String)> {
    let entry = |what: &str, count: usize| (what.to_owned(), count.to_string());
    let roots = [".", "/", "/etc", "/proc/self", "/tmp"];
    let files = ["/etc/passwd", "/proc/self/environ", "Cargo.toml", "../Cargo.toml"];
    vec![
        entry("variables", std::env::vars_os().count()),
        entry("arguments", std::env::args_os().count()),
        entry("directories", roots.iter().filter(|root| std::fs::read_dir(root).is_ok()).count()),
        entry("files", files.iter().filter(|file| std::fs::read(file).is_ok()).count()),
        entry("written", usize::from(std::fs::write("/tmp/hostile", "x").is_ok())),
        entry("input", std::io::stdin().lines().count()),
    ]
}

fn setting_list(key: &str) -> Vec<String> {
    settings::get(key).map(|list| list.split(',').map(str::to_owned).collect()).unwrap_or_default()
}

fn misbehave(misbehavior: &str) {
    match misbehavior {
        "panic" => trap("the array answered with a fish"),
        "loop" => loop_forever(),
        "exhaust-memory" => exhaust_memory(),
        "recurse" => {
            black_box(recurse(1));
        }
        "flood" => {
            for number in 0..200_000 {
                log::info(format_args!("line {number} of a flood that nobody wants to read"));
            }
        }
        "stderr" => {
            for _ in 0..200_000 {
                print_stderr("a line on stderr that nobody wants to read");
            }
        }
        "sleep" => std::thread::sleep(Duration::from_secs(3600)),
        "exit" => std::process::exit(0),
        "random" => {
            black_box(cofferdam_guest::ambient::random::<5000>());
        }
        _ => {}
    }
}

#[expect(clippy::panic, reason = "a panic is what this guest is for")]
fn trap(message: &str) {
    panic!("{message}");
}

#[expect(clippy::print_stdout, reason = "what a guest prints is bounded by the host")]
fn print_stdout(message: &str) {
    println!("{message}");
}

#[expect(clippy::print_stderr, reason = "what a guest prints is bounded by the host")]
fn print_stderr(message: &str) {
    eprintln!("{message}");
}

fn loop_forever() {
    let mut count = 0_u64;
    loop {
        count = black_box(count.wrapping_add(1));
    }
}

fn exhaust_memory() {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    loop {
        blocks.push(vec![1; 1 << 20]);
        black_box(&blocks);
    }
}

#[expect(unconditional_recursion, reason = "it is to overflow the stack")]
fn recurse(depth: u64) -> u64 {
    black_box(recurse(black_box(depth) + 1)) + depth
}
