//! QEMU's monitor: the QEMU Machine Protocol, whose messages are lines of JSON.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
};

/// Executes a command in a connection of its own.
///
/// # Errors
/// If QEMU does not respond or reports an error.
pub(super) async fn execute(socket: &Path, command: &str, arguments: &Value) -> Result<()> {
    let stream = UnixStream::connect(socket).await.context("QEMU's monitor")?;
    let mut stream = BufReader::new(stream);
    let mut greeting = String::new();
    stream.read_line(&mut greeting).await?;
    send(&mut stream, &json!({ "execute": "qmp_capabilities" })).await?;
    send(&mut stream, &json!({ "execute": command, "arguments": arguments })).await
}

/// Sends a command, and waits for its response. Ignores events.
async fn send(stream: &mut BufReader<UnixStream>, command: &Value) -> Result<()> {
    stream.write_all(format!("{command}\n").as_bytes()).await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            bail!("QEMU closed the connection of its monitor after {command}");
        }
        let message: Value = serde_json::from_str(&line)?;
        if message.get("return").is_some() {
            return Ok(());
        }
        if let Some(error) = message.get("error") {
            bail!("QEMU's monitor rejects {command}: {error}");
        }
    }
}
