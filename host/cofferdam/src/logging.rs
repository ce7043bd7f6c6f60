//! The log, on stderr.

use tracing_subscriber::EnvFilter;

use crate::config::{Configuration, LogFormat};

/// Log target of kube's client. It logs every failed request as an error before it returns the same error;
/// the roles retry most of these requests and log the others.
const KUBE_CLIENT: &str = "kube_client";

/// Starts logging in this process. A second call has no effect.
pub(crate) fn start(configuration: &Configuration) {
    // The configuration has validated the filter.
    let mut filter = EnvFilter::try_new(&configuration.log.0).unwrap_or_default();
    if !configuration.log.0.contains(KUBE_CLIENT)
        && let Ok(directive) = format!("{KUBE_CLIENT}=off").parse()
    {
        filter = filter.add_directive(directive);
    }
    // Drop lines that cannot be written: the subscriber would report them on the same stderr and panic.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let started = match configuration.log_format {
        LogFormat::Text => log.with_ansi(is_colour_enabled(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logging was started before");
    }
}

/// Reports if a stream gets colours: it is a terminal and `NO_COLOR` is empty or unset
/// (<https://no-color.org>).
pub(crate) fn is_colour_enabled(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
