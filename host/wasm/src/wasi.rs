//! WASI with nothing behind it: what the runtimes of guest languages import without needing it.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime_wasi::{
    WasiView as _,
    cli::{IsTerminal, StdoutStream, WasiCli, WasiCliView as _},
    clocks::{WasiClocks, WasiClocksView as _},
    filesystem::{WasiFilesystem, WasiFilesystemView as _},
    p2::{
        OutputStream, Pollable, StreamResult,
        bindings::{cli, clocks, filesystem, random},
    },
    random::WasiRandom,
};
use wasmtime_wasi_io::bindings::wasi::io;

use crate::instance::Host;

struct Io;

impl HasData for Io {
    type Data<'a> = &'a mut ResourceTable;
}

/// Links the interfaces of [`INERT`](crate::inspect::INERT), one by one: an interface that a new version of the library adds
/// is not offered by accident.
pub(crate) fn link(l: &mut Linker<Host>) -> wasmtime::Result<()> {
    io::error::add_to_linker::<Host, Io>(l, |host| host.ctx().table)?;
    io::poll::add_to_linker::<Host, Io>(l, |host| host.ctx().table)?;
    io::streams::add_to_linker::<Host, Io>(l, |host| host.ctx().table)?;
    clocks::wall_clock::add_to_linker::<Host, WasiClocks>(l, Host::clocks)?;
    clocks::monotonic_clock::add_to_linker::<Host, WasiClocks>(l, Host::clocks)?;
    filesystem::preopens::add_to_linker::<Host, WasiFilesystem>(l, Host::filesystem)?;
    filesystem::types::add_to_linker::<Host, WasiFilesystem>(l, Host::filesystem)?;
    random::random::add_to_linker::<Host, WasiRandom>(l, |host| host.ctx().ctx.random())?;
    random::insecure::add_to_linker::<Host, WasiRandom>(l, |host| host.ctx().ctx.random())?;
    random::insecure_seed::add_to_linker::<Host, WasiRandom>(l, |host| host.ctx().ctx.random())?;
    cli::exit::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::environment::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::stdin::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::stdout::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::stderr::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::terminal_input::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::terminal_output::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::terminal_stdin::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::terminal_stdout::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    cli::terminal_stderr::add_to_linker::<Host, WasiCli>(l, Host::cli)?;
    Ok(())
}

/// What a guest prints: the first bytes are kept, the rest is counted and swallowed. It never blocks and never fails, so
/// that a guest that prints too much only loses what it printed.
#[derive(Clone, Debug)]
pub(crate) struct Output(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    shown: usize,
    limit: usize,
    lost: usize,
}

/// How much a guest may write at once; the size that WASI streams commonly have.
const PERMIT: usize = 64 << 10;

impl Output {
    /// Shows so many bytes, and keeps more by the longest secret that may stand at their end.
    pub(crate) fn new(shown: usize, longest_secret: usize) -> Self {
        let limit = shown.saturating_add(longest_secret);
        Self(Arc::new(Mutex::new(Kept { bytes: Vec::new(), shown, limit, lost: 0 })))
    }

    /// What was printed as text, cleaned by `blot`, without control characters and not longer than the limit, and how many bytes
    /// are missing. `None` when nothing was printed.
    pub(crate) fn text(&self, blot: impl Fn(&str) -> String) -> Option<(String, usize)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Before anything is cut or replaced: half of a secret, or one with a blank for its tab, would not be recognised.
        let text = blot(String::from_utf8_lossy(&kept.bytes).trim());
        let shown: String = text
            .char_indices()
            .take_while(|(at, _)| *at < kept.shown)
            .map(|(_, letter)| if letter.is_control() && letter != '\n' { ' ' } else { letter })
            .collect();
        let lost = kept.lost.saturating_add(text.len().saturating_sub(shown.len()));
        (!shown.is_empty() || lost > 0).then_some((shown, lost))
    }

    fn append(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = kept.limit.saturating_sub(kept.bytes.len()).min(bytes.len());
        let (head, tail) = bytes.split_at(room);
        kept.bytes.extend_from_slice(head);
        kept.lost = kept.lost.saturating_add(tail.len());
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        // Only WASI 0.3 asks for this form; it is not linked.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi_io::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi_io::async_trait]
impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.append(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PERMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_bounded_and_cleaned() {
        let output = Output::new(10, 0);
        assert_eq!(output.text(str::to_owned), None);
        output.append(b"a\x1b[");
        output.append(b"1m\xffbcdefg");
        assert_eq!(output.text(str::to_owned), Some(("a [1m\u{fffd}bc".to_owned(), 4)));
    }

    #[test]
    fn a_secret_is_found_where_the_output_is_cut_and_whatever_it_is_made_of() {
        let output = Output::new(8, 10);
        output.append(b"12345a\tsecret\r\n and more");
        let blot = |text: &str| text.replace("a\tsecret\r", "#");
        assert_eq!(output.text(blot), Some(("12345#\n ".to_owned(), 8)));
    }
}
