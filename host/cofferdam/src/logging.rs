//! The log, on stderr.

use tracing_subscriber::EnvFilter;

use crate::config::{Configuration, LogFormat};

/// kube's client logs every failed request as an error before it returns the same error to us. Whether it is
/// one is for the roles to say: most are retried.
const KUBE_CLIENT: &str = "kube_client";

/// Starts the log of this process. A second call does nothing.
pub(crate) fn start(configuration: &Configuration) {
    // The configuration has parsed the filter before.
    let mut filter = EnvFilter::try_new(&configuration.log.0).unwrap_or_default();
    if !configuration.log.0.contains(KUBE_CLIENT)
        && let Ok(directive) = format!("{KUBE_CLIENT}=off").parse()
    {
        filter = filter.add_directive(directive);
    }
    // A line that cannot be written is lost. The subscriber would tell that on the same stderr, and panic
    // there.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let started = match configuration.log_format {
        LogFormat::Text => log.with_ansi(is_colour_enabled(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "the log was started before");
    }
}

/// Whether colours go to this stream: on a terminal, unless `NO_COLOR` holds anything
/// (<https://no-color.org>).
pub(crate) fn is_colour_enabled(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
