//! Child processes that can be paused, killed and restarted, with their logs in the run's directory; and
//! programs that run to their end.

use std::{
    fmt,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use http::Request;
use kube::Client;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use crate::{run::SuiteRun, wait::until};

/// Time between SIGTERM and SIGKILL. kube-apiserver waits up to a minute for open requests.
const STOP_TIMEOUT: Duration = Duration::from_secs(150);
/// Time limit of all threads of a process to stop after SIGSTOP.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(30);
/// State of a thread that SIGSTOP has stopped, as in proc_pid_stat(5).
const STOPPED: char = 'T';
/// Time limit of the requests for the metrics of a process.
const METRICS_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of lines at the end of a process's log that an error contains.
const LOG_TAIL_LINES: usize = 12;

/// A command line, its environment and the name of its log.
#[derive(Clone, Debug)]
pub struct CommandSpec {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl CommandSpec {
    /// A command of a program without arguments. `name` is the name of the process and of its log.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), program: program.into(), arguments: Vec::new(), environment: Vec::new() }
    }

    /// Replaces the name of the process and of its log.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl fmt::Display) -> Self {
        self.arguments.push(argument.to_string());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: fmt::Display>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.to_string()));
        self
    }

    /// Runs the program in a UTS namespace of its own, whose host name is `name`: the name of a pod.
    #[must_use]
    pub fn host_name(mut self, name: &str) -> Self {
        let script = r#"hostname "$0" && exec "$@""#;
        let program = std::mem::replace(&mut self.program, "unshare".into());
        let wrapped = ["--uts", "--", "sh", "-c", script, name].map(str::to_owned);
        let program = program.display().to_string();
        self.arguments = wrapped.into_iter().chain([program]).chain(self.arguments).collect();
        self
    }

    /// Sets an environment variable. The program inherits none; `PATH` and `HOME` have defaults.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }
}

/// A program that the harness has started at least once. It may have been stopped or killed since then.
#[derive(Debug)]
pub struct ManagedProcess {
    spec: CommandSpec,
    home: PathBuf,
    log: PathBuf,
    /// `None` if the process was stopped or killed, or its exit was detected.
    child: Option<Child>,
    /// Client of the server of `/metrics`.
    metrics: Option<MetricsClient>,
}

struct MetricsClient(Client);

impl fmt::Debug for MetricsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsClient").finish_non_exhaustive()
    }
}

impl ManagedProcess {
    /// Starts a program.
    ///
    /// # Errors
    /// If the program cannot be started, or its log cannot be opened.
    pub fn start(run: &SuiteRun, spec: CommandSpec) -> Result<Self> {
        let log = run.log(&spec.name);
        let home = run.scratch().to_owned();
        let mut process = Self { spec, home, log, child: None, metrics: None };
        process.restart()?;
        Ok(process)
    }

    /// Restarts the program after it was stopped or killed, or its exit was detected.
    ///
    /// # Errors
    /// If it still runs, if it has exited by itself and no other method has detected that yet, if it cannot
    /// be started, or if its log cannot be opened.
    pub fn restart(&mut self) -> Result<()> {
        if self.child.is_some() {
            bail!("{} runs: expected that it was stopped first", self.spec.name);
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(&self.spec.program)
            .args(&self.spec.arguments)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &self.home)
            .envs(self.spec.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A process group of its own: Ctrl-C only reaches the harness, and signals reach the program's
            // children.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.spec.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Sets the client of the server of `/metrics`. From now on, [`stop`](Self::stop) and
    /// [`kill`](Self::kill) first append the metrics to the [metrics file](Self::metrics_file).
    #[must_use]
    pub fn with_metrics(mut self, client: Client) -> Self {
        self.metrics = Some(MetricsClient(client));
        self
    }

    /// The client of [`with_metrics`](Self::with_metrics).
    pub(crate) fn metrics_client(&self) -> Result<&Client> {
        let MetricsClient(client) =
            self.metrics.as_ref().with_context(|| format!("{} has no metrics", self.spec.name))?;
        Ok(client)
    }

    /// The file with the metrics of every run of the program at its end, beside the log.
    #[must_use]
    pub fn metrics_file(log: &Path) -> PathBuf {
        log.with_extension("metrics")
    }

    /// Appends the metrics to their file. A process that does not respond has no metrics.
    async fn save_metrics(&self) -> Result<()> {
        let Some(MetricsClient(client)) = &self.metrics else { return Ok(()) };
        let page = metrics_page(client);
        if let Ok(Ok(page)) = tokio::time::timeout(METRICS_TIMEOUT, page).await {
            let path = Self::metrics_file(&self.log);
            File::options().create(true).append(true).open(path)?.write_all(page.as_bytes())?;
        }
        Ok(())
    }

    /// The page of metrics, if the process has a server of `/metrics`.
    ///
    /// # Errors
    /// If it has none, or the request fails.
    pub(crate) async fn metrics_page(&self) -> Result<String> {
        metrics_page(self.metrics_client()?).await
    }

    /// The name of the process and of its log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The log file, to which every run of the program appends its output.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The process ID. `None` if the program was stopped or killed, or its exit was detected.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Repeats `probe` until it succeeds, and returns its result. Fails early if the program exits.
    ///
    /// # Errors
    /// If the program exits, or `probe` does not succeed within `limit`. The error contains the end of the
    /// log.
    pub async fn wait_ready<T>(
        &mut self,
        limit: Duration,
        mut probe: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let condition = format!("{} is ready", self.spec.name);
        let mut exit_status = None;
        let answer = {
            let child = &mut self.child;
            until(&condition, limit, async || {
                if let Some(status) = child.as_mut().map_or(Ok(None), Child::try_wait)? {
                    exit_status = Some(status);
                    return Ok(None);
                }
                probe().await.map(Some)
            })
            .await
        };
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                self.child = None;
                let status = exit_status.map(|status| status.to_string()).unwrap_or_default();
                Err(self.with_log_tail(anyhow!("{} ended before it was ready: {status}", self.spec.name)))
            }
            Err(error) => Err(self.with_log_tail(error)),
        }
    }

    /// Fails if the program has exited by itself since its last start and no method has reported that yet.
    /// Also succeeds if the harness has stopped or killed the program.
    ///
    /// # Errors
    /// If the program has exited. The error contains the exit status and the end of the log.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self.take_exit_status()? {
            None => Ok(()),
            Some(status) => Err(self.with_log_tail(anyhow!("{} ended by itself: {status}", self.spec.name))),
        }
    }

    /// Exit status of the program, if it has exited since its last start and no method has reported that yet.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub(crate) fn take_exit_status(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.as_mut().map_or(Ok(None), Child::try_wait)?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Stops the program and its process group with SIGTERM, and with SIGKILL if the program does not exit in
    /// time. Ignores the program's exit status. Does nothing if the program was stopped or killed before, or
    /// its exit was reported.
    ///
    /// # Errors
    /// If the program had exited by itself and no method has reported that yet, or SIGKILL was necessary.
    pub async fn stop(&mut self) -> Result<()> {
        self.ensure_running()?;
        self.save_metrics().await?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        signal(&child, Signal::TERM)?;
        match tokio::time::timeout(STOP_TIMEOUT, child.wait()).await {
            Ok(status) => status.map(|_| ()).map_err(Into::into),
            Err(_) => {
                signal(&child, Signal::KILL)?;
                child.wait().await?;
                Err(self.with_log_tail(anyhow!(
                    "{} did not end within {STOP_TIMEOUT:?} after SIGTERM",
                    self.spec.name
                )))
            }
        }
    }

    /// Kills the program and its process group with SIGKILL, and waits until the program has exited. Does
    /// nothing if it was stopped or killed before, or its exit was reported.
    ///
    /// # Errors
    /// If the program had exited by itself and no method has reported that yet.
    pub async fn kill(&mut self) -> Result<()> {
        self.ensure_running()?;
        self.save_metrics().await?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        signal(&child, Signal::KILL)?;
        child.wait().await?;
        Ok(())
    }

    /// Pauses the program and its process group with SIGSTOP, and waits until all threads of the program have
    /// stopped: connections to the program stay open without responses. SIGSTOP alone takes effect when the
    /// kernel next schedules a thread, so a busy machine lets other threads respond after it.
    ///
    /// # Errors
    /// If it does not run, or does not stop in time.
    pub async fn pause(&self) -> Result<()> {
        let name = &self.spec.name;
        let child = self.child.as_ref().with_context(|| format!("{name} does not run"))?;
        pause(child).await.with_context(|| format!("{name} does not stop after SIGSTOP"))
    }

    /// Continues a paused program and its process group.
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until the program exits by itself, and returns its exit status.
    ///
    /// # Errors
    /// If the program does not run, or does not exit within `limit`.
    pub async fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = &self.spec.name;
        let Some(child) = &mut self.child else { bail!("{name} does not run") };
        let status = tokio::time::timeout(limit, child.wait())
            .await
            .with_context(|| format!("{name} runs: expected its end within {limit:?}"))??;
        self.child = None;
        Ok(status)
    }

    /// Sends a signal to the program and its process group, and does not wait. After a signal that ends the
    /// program, call [`wait_exit`](Self::wait_exit).
    ///
    /// # Errors
    /// If it does not run.
    pub(crate) fn signal(&self, which: Signal) -> Result<()> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.spec.name))?;
        signal(child, which)
    }

    /// Adds the end of the log to an error.
    fn with_log_tail(&self, error: anyhow::Error) -> anyhow::Error {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LOG_TAIL_LINES)..).unwrap_or_default().join("\n    ");
        error.context(format!("{} ends with\n    {tail}", self.log.display()))
    }
}

/// The metrics of a server.
///
/// # Errors
/// If requests fail for [`METRICS_TIMEOUT`].
pub(crate) async fn metrics_page(client: &Client) -> Result<String> {
    // The server may close an idle connection at the moment of the request.
    until("metrics", METRICS_TIMEOUT, async || {
        Ok(client.request_text(Request::get("/metrics").body(Vec::new())?).await?)
    })
    .await
}

fn signal(child: &Child, which: Signal) -> Result<()> {
    let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    // No id: it has exited.
    id.map_or(Ok(()), |id| kill_process_group(id, which)).map_err(Into::into)
}

/// Pauses a child process with its process group, and waits until all of its threads have stopped.
async fn pause(child: &Child) -> Result<()> {
    signal(child, Signal::STOP)?;
    let id = child.id().context("it has ended")?;
    let stopped = until("all threads are stopped", PAUSE_TIMEOUT, async || {
        let states = thread_states(id)?;
        let are_stopped = !states.is_empty() && states.chars().all(|state| state == STOPPED);
        ensure!(are_stopped, "states of its threads: {states}");
        Ok(())
    })
    .await;
    if stopped.is_err() {
        signal(child, Signal::CONT)?;
    }
    stopped
}

/// States of the threads of a process, one letter each as in proc_pid_stat(5).
fn thread_states(id: u32) -> Result<String> {
    let mut states = String::new();
    for thread in fs::read_dir(format!("/proc/{id}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("stat"))?;
        // The thread's name, in parentheses before the state, may contain spaces and parentheses.
        let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
        states.push(state.with_context(|| format!("stat of a thread without a state: {stat}"))?);
    }
    Ok(states)
}

/// Runs a program to its end, and returns its stdout.
///
/// # Errors
/// If it cannot be started, exits with a code other than 0 or by a signal (the error contains its stderr), or
/// its stdout is not UTF-8.
pub async fn run_to_completion(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
    let program = program.as_ref();
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} {}: {}: {}", program.display(), arguments.join(" "), output.status, stderr.trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_thread_runs_after_a_pause() -> Result<()> {
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().context("it has ended")?;
        for _ in 0..100 {
            pause(&child).await?;
            assert_eq!(thread_states(id)?, STOPPED.to_string());
            signal(&child, Signal::CONT)?;
        }
        signal(&child, Signal::KILL)?;
        child.wait().await?;
        Ok(())
    }
}
