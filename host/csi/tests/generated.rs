//! Checks that the Rust code in `src/generated` matches the files in `proto/`.
//!
//! The code is committed so that a build of the program needs neither `protoc` nor a protobuf compiler in
//! Rust. To regenerate it after a change of `proto/`, run `UPDATE=1 cargo test --package cofferdam-csi --test
//! generated`.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

use protox::prost_reflect::{DescriptorPool, MessageDescriptor, Value};

const FILES: [&str; 2] = ["csi.proto", "registration.proto"];
/// Replaces the value of a secret field in `Debug` output, as in the Go sidecars' logs.
const STRIPPED: &str = "***stripped***";

/// A message type with the names of its secret fields.
type Secretive = (MessageDescriptor, Vec<String>);

#[test]
fn committed_code_matches_the_proto_files() -> Result<(), Box<dyn Error>> {
    let fresh = tempfile::tempdir()?;
    generate(fresh.path())?;
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    for entry in fs::read_dir(fresh.path())? {
        let file = entry?.file_name();
        let generated = fs::read_to_string(fresh.path().join(&file))?;
        if env::var_os("UPDATE").is_some() {
            fs::write(committed.join(&file), generated)?;
            continue;
        }
        let found = fs::read_to_string(committed.join(&file))?;
        assert!(
            found == generated,
            "src/generated/{} does not match proto/: run `UPDATE=1 cargo test --package cofferdam-csi \
             --test generated`",
            file.display()
        );
    }
    Ok(())
}

fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    let mut compiler = protox::Compiler::new([concat!(env!("CARGO_MANIFEST_DIR"), "/proto")])?;
    compiler.include_imports(true);
    compiler.open_files(FILES)?;
    let pool = compiler.descriptor_pool();
    let secret = messages_with_secrets(&pool)?;
    // CSI lets a driver omit every call that it does not announce: the default stubs answer `Unimplemented`.
    let mut builder = tonic_prost_build::configure()
        .build_transport(false)
        .generate_default_stubs(true)
        .btree_map(".")
        .out_dir(out);
    for (message, _) in &secret {
        builder = builder.skip_debug([format!(".{}", message.full_name())]);
    }
    builder.compile_fds(compiler.file_descriptor_set())?;
    fs::write(out.join("debug.rs"), debug_impls(&secret)?)?;
    fs::write(out.join("paths.rs"), paths(&pool)?)?;
    Ok(())
}

/// Messages with fields that carry the option `csi_secret`, and these fields.
fn messages_with_secrets(pool: &DescriptorPool) -> Result<Vec<Secretive>, Box<dyn Error>> {
    let option = pool.get_extension_by_name("csi.v1.csi_secret").ok_or("csi.proto has no csi_secret")?;
    let is_secret = |options: protox::prost_reflect::DynamicMessage| {
        options.has_extension(&option) && *options.get_extension(&option) == Value::Bool(true)
    };
    let found = pool.all_messages().filter_map(|message| {
        let fields: Vec<_> = message
            .fields()
            .filter(|field| is_secret(field.options()))
            .map(|field| field.name().to_owned())
            .collect();
        (!fields.is_empty()).then_some((message, fields))
    });
    Ok(found.collect())
}

fn debug_impls(messages: &[Secretive]) -> Result<String, std::fmt::Error> {
    let mut code = String::new();
    for (message, secret) in messages {
        let name = message.name();
        writeln!(code, "impl ::core::fmt::Debug for {name} {{")?;
        writeln!(code, "    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{")?;
        writeln!(code, "        f.debug_struct({name:?})")?;
        for field in message.fields() {
            let field = field.name();
            if secret.iter().any(|secret| secret == field) {
                writeln!(code, "            .field({field:?}, &::core::format_args!({STRIPPED:?}))")?;
            } else {
                writeln!(code, "            .field({field:?}, &self.{field})")?;
            }
        }
        writeln!(code, "            .finish()\n    }}\n}}")?;
    }
    Ok(code)
}

/// The gRPC paths of all methods, for metric labels.
fn paths(pool: &DescriptorPool) -> Result<String, std::fmt::Error> {
    let mut code = "&[\n".to_owned();
    for service in pool.services() {
        for method in service.methods() {
            writeln!(code, "    \"/{}/{}\",", service.full_name(), method.name())?;
        }
    }
    code.push(']');
    Ok(code)
}
