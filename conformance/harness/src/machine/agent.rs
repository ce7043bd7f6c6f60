//! The agent in a machine: runs commands, and connects to Unix sockets, for the harness. A connection is one
//! request: a line of JSON. The agent has no authentication: only this machine's loopback reaches it.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixStream},
    process::Command,
};

/// The agent's port in the machine.
pub(super) const PORT: u16 = 7000;
/// Directories of programs.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/opt/programs";

/// A request of the harness.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum AgentRequest {
    /// Run a script with the shell until a command fails. The response is a [`ScriptOutput`] as JSON.
    Run {
        /// The script.
        script: String,
        /// Its standard input.
        input: String,
    },
    /// Connect to a Unix socket. The bytes after the request are for the socket.
    Connect {
        /// The socket.
        socket: PathBuf,
    },
}

/// The result of a script.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ScriptOutput {
    /// The exit code; `None` after a signal.
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Serves requests.
///
/// # Errors
/// If the agent cannot listen.
pub(crate) async fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await.context("the agent cannot listen")?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = respond(stream).await {
                crate::print_status(format_args!("machine-agent: {error:#}"));
            }
        });
    }
}

async fn respond(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    match serde_json::from_str(&line)? {
        AgentRequest::Run { script, input } => {
            let output = serde_json::to_vec(&run(&script, &input).await?)?;
            stream.write_all(&output).await?;
            Ok(stream.shutdown().await?)
        }
        AgentRequest::Connect { socket } => {
            let mut socket = UnixStream::connect(&socket)
                .await
                .with_context(|| format!("cannot connect to {}", socket.display()))?;
            copy_bidirectional(&mut stream, &mut socket).await?;
            Ok(())
        }
    }
}

/// Runs a script to its end. Processes that it leaves in the background must not keep its output open.
async fn run(script: &str, input: &str) -> Result<ScriptOutput> {
    let mut child = Command::new("/bin/sh")
        .args(["-ec", script])
        .env("PATH", PATH)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the shell")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A script that does not read its input may have ended.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await?;
    Ok(ScriptOutput {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
