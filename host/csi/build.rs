//! Makes Rust of the files in `proto/`, without `protoc`, and keeps secrets out of what `Debug` shows.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

use protox::prost_reflect::{DescriptorPool, MessageDescriptor, Value};

const FILES: [&str; 2] = ["csi.proto", "registration.proto"];
/// What stands in place of a secret; the sidecars' word.
const STRIPPED: &str = "***stripped***";

/// A message with the names of its secret fields.
type Secretive = (MessageDescriptor, Vec<String>);

fn main() -> Result<(), Box<dyn Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true);
    for file in FILES {
        println!("cargo::rerun-if-changed=proto/{file}");
        compiler.open_file(file)?;
    }
    let pool = compiler.descriptor_pool();
    let secret = messages_with_secrets(&pool)?;
    // CSI lets a driver leave out every call that it does not announce: a server's methods answer `Unimplemented` by themselves.
    let mut builder =
        tonic_prost_build::configure().build_transport(false).generate_default_stubs(true).btree_map(".");
    for (message, _) in &secret {
        builder = builder.skip_debug([format!(".{}", message.full_name())]);
    }
    builder.compile_fds(compiler.file_descriptor_set())?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("debug.rs"), debug_impls(&secret)?)?;
    fs::write(Path::new(&out).join("paths.rs"), paths(&pool)?)?;
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

/// The paths of all calls: what metrics may name.
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
