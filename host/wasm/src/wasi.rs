//! WASI imports: the runtimes of some guest languages import WASI even where the driver does not use it.
//! Guests get no files, arguments, environment variables, input and network. Clocks and random numbers work,
//! the output is logged, and `exit` ends the call.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cofferdam_backend::Redactor;
use cofferdam_domain::text::is_control_or_format;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime_wasi::{
    WasiView,
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

struct WasiIo;

impl HasData for WasiIo {
    type Data<'a> = &'a mut ResourceTable;
}

/// Links the interfaces of `INERT_IMPORTS`, one by one: an interface that a new version of the library adds
/// is not offered by accident.
pub(crate) fn link<T: WasiView + 'static>(l: &mut Linker<T>) -> wasmtime::Result<()> {
    io::error::add_to_linker::<T, WasiIo>(l, |host| host.ctx().table)?;
    io::poll::add_to_linker::<T, WasiIo>(l, |host| host.ctx().table)?;
    io::streams::add_to_linker::<T, WasiIo>(l, |host| host.ctx().table)?;
    clocks::wall_clock::add_to_linker::<T, WasiClocks>(l, T::clocks)?;
    clocks::monotonic_clock::add_to_linker::<T, WasiClocks>(l, T::clocks)?;
    filesystem::preopens::add_to_linker::<T, WasiFilesystem>(l, T::filesystem)?;
    filesystem::types::add_to_linker::<T, WasiFilesystem>(l, T::filesystem)?;
    random::random::add_to_linker::<T, WasiRandom>(l, |host| host.ctx().ctx.random())?;
    random::insecure::add_to_linker::<T, WasiRandom>(l, |host| host.ctx().ctx.random())?;
    random::insecure_seed::add_to_linker::<T, WasiRandom>(l, |host| host.ctx().ctx.random())?;
    cli::exit::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::environment::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::stdin::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::stdout::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::stderr::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::terminal_input::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::terminal_output::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::terminal_stdin::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::terminal_stdout::add_to_linker::<T, WasiCli>(l, T::cli)?;
    cli::terminal_stderr::add_to_linker::<T, WasiCli>(l, T::cli)?;
    Ok(())
}

/// Standard output and error of one call: the first bytes are stored, the rest is counted and dropped. Writes
/// never block and never fail, so a guest that prints too much only loses output.
#[derive(Clone, Debug)]
pub(crate) struct GuestOutput(Arc<Mutex<OutputBuffer>>);

#[derive(Debug)]
struct OutputBuffer {
    bytes: Vec<u8>,
    max_text_bytes: usize,
    max_bytes: usize,
    dropped_bytes: usize,
}

/// Maximum bytes of one write; the usual size of WASI streams.
const MAX_WRITE: usize = 64 << 10;
/// Bytes that are stored after the end of the text for a login token that starts before it.
const MAX_TOKEN_FORM: usize = 8 << 10;

impl GuestOutput {
    /// Creates an output of which at most `shown` bytes are logged. The buffer is larger by the longest form
    /// of a secret (`lookahead`), so that a secret at the end of the text is recognised and redacted.
    pub(crate) fn new(shown: usize, lookahead: usize) -> Self {
        let limit = shown.saturating_add(lookahead.max(MAX_TOKEN_FORM));
        Self(Arc::new(Mutex::new(OutputBuffer {
            bytes: Vec::new(),
            max_text_bytes: shown,
            max_bytes: limit,
            dropped_bytes: 0,
        })))
    }

    /// The output as text, redacted, without control and format characters other than line breaks and
    /// within the limit, and the number of dropped bytes. `None` without output.
    pub(crate) fn redacted_text(&self, redactor: &Redactor) -> Option<(String, usize)> {
        let buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&buffer.bytes);
        let text = text.trim();
        // Where bytes were dropped, a secret that they complete is not recognised: what could be its start is
        // not shown.
        let max_shown = match buffer.dropped_bytes {
            0 => buffer.max_text_bytes,
            _ => buffer.max_text_bytes.min(text.len().saturating_sub(redactor.lookahead_bytes())),
        };
        // Redacts before control characters are replaced: otherwise a secret with a blank for its tab would
        // not be recognised.
        let shown: String = redactor
            .redact_start(text, max_shown)
            .chars()
            .map(|letter| if is_control_or_format(letter) && letter != '\n' { ' ' } else { letter })
            .collect();
        let lost = buffer.dropped_bytes.saturating_add(text.len().saturating_sub(max_shown));
        (!shown.is_empty() || lost > 0).then_some((shown, lost))
    }

    fn append(&self, bytes: &[u8]) {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = buffer.max_bytes.saturating_sub(buffer.bytes.len()).min(bytes.len());
        let (head, tail) = bytes.split_at(free);
        buffer.bytes.extend_from_slice(head);
        buffer.dropped_bytes = buffer.dropped_bytes.saturating_add(tail.len());
    }
}

impl IsTerminal for GuestOutput {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestOutput {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        // Only WASI 0.3 uses this method; it is not linked.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi_io::async_trait]
impl Pollable for GuestOutput {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi_io::async_trait]
impl OutputStream for GuestOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.append(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(MAX_WRITE)
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::Secret;

    use super::*;

    fn redactor(secret: &str) -> Redactor {
        Redactor::new([("password".to_owned(), Secret::new(secret))].into_iter().collect())
    }

    #[test]
    fn output_is_bounded_and_cleaned() {
        let output = GuestOutput::new(10, 0);
        assert_eq!(output.redacted_text(&Redactor::default()), None);
        output.append(b"a\x1b[");
        output.append(b"1m\xffbcdefg");
        assert_eq!(output.redacted_text(&Redactor::default()), Some(("a [1m\u{fffd}bc".to_owned(), 4)));
    }

    #[test]
    fn secret_at_the_output_limit_is_redacted() {
        let redactor = redactor("a\tsecret\r");
        let output = GuestOutput::new(8, redactor.lookahead_bytes());
        output.append(b"12345a\tsecret\r\n and more");
        let (shown, _) = output.redacted_text(&redactor).unwrap();
        assert_eq!(shown, "12345[secret]");
    }

    #[test]
    fn half_a_secret_at_the_end_of_the_buffer_is_not_shown() {
        // Placeholders are shorter than what they replace.
        let secret = "0123456789abcdef".repeat(64);
        let redactor = redactor(&secret);
        let output = GuestOutput::new(1_100, redactor.lookahead_bytes());
        (0..20).for_each(|_| output.append(format!("{secret}.").as_bytes()));
        let (shown, lost) = output.redacted_text(&redactor).unwrap();
        assert!(!shown.contains("0123") && shown.starts_with("[secret].") && lost > 18 * 1_024, "{shown}");
        // A token that the call learns is shorter than what is stored after the text.
        let token = "t0ken".repeat(1_000);
        assert!(redactor.add_token(&token));
        let output = GuestOutput::new(2_000, 0);
        (0..4).for_each(|_| output.append(format!("{token}.").as_bytes()));
        let (shown, _) = output.redacted_text(&redactor).unwrap();
        assert!(!shown.contains("t0ken"), "{shown}");
    }
}
