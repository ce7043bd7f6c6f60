//! A process of a pod that writes numbers to a file, and notes which of them the storage has confirmed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{machine::Machine, wait::until};

/// Time limit of the first write.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running writer. A failed write, which the pod would see, is not confirmed.
pub(super) struct Writer<'a> {
    machine: &'a Machine,
    name: String,
}

impl<'a> Writer<'a> {
    /// Starts a writer of the file `log-NAME` in a directory of the machine.
    pub(super) async fn start(machine: &'a Machine, name: &str, directory: &str) -> Result<Self> {
        let script = format!(
            "rm -f /run/stop-{name} /run/confirmed-{name}; touch /run/confirmed-{name}
             (number=0
              while [ ! -e /run/stop-{name} ]; do
                number=$((number + 1))
                echo $number >> {directory}/log-{name} && sync {directory}/log-{name} \
                  && echo $number $(cut -d ' ' -f 1 /proc/uptime) >> /run/confirmed-{name}
                usleep 50000
              done) </dev/null >/run/writer-{name}.log 2>&1 &
             echo $! > /run/pid-{name}"
        );
        machine.shell(&script).await?;
        let writer = Self { machine, name: name.to_owned() };
        writer.wait_confirmed_after(0.0, START_TIMEOUT).await?;
        Ok(writer)
    }

    /// Waits for a number that was written and confirmed after this uptime. Returns the seconds between.
    ///
    /// # Errors
    /// If there is none in time.
    pub(super) async fn wait_confirmed_after(&self, uptime: f64, limit: Duration) -> Result<f64> {
        until(&format!("{} writes", self.name), limit, async || {
            let confirmed = self.confirmed().await?;
            let found = confirmed.iter().map(|(_, at)| *at).find(|at| *at > uptime);
            Ok(found.context("no number is confirmed")? - uptime)
        })
        .await
    }

    /// Stops the writer, and returns the numbers that the storage has confirmed.
    ///
    /// # Errors
    /// If a write has failed.
    pub(super) async fn stop(self) -> Result<Vec<String>> {
        let Self { machine, name } = &self;
        machine
            .shell(&format!("touch /run/stop-{name}; while kill -0 $(cat /run/pid-{name}) 2>/dev/null; do usleep 20000; done"))
            .await?;
        let failures = machine.shell(&format!("cat /run/writer-{name}.log")).await?;
        ensure!(failures.is_empty(), "the writer {name} reports {failures}");
        Ok(self.confirmed().await?.into_iter().map(|(number, _)| number).collect())
    }

    /// The confirmed numbers, each with the uptime of its confirmation.
    async fn confirmed(&self) -> Result<Vec<(String, f64)>> {
        let text = self.machine.shell(&format!("cat /run/confirmed-{}", self.name)).await?;
        let lines = text.lines().map(|line| {
            let (number, uptime) = line.split_once(' ').context("a line without an uptime")?;
            Ok((number.to_owned(), uptime.parse()?))
        });
        lines.collect()
    }
}
