//! kubectl prints the same on kube-apiserver and on the embedded API, except for listed deviations and for
//! values that differ between two runs.

mod deviations;
mod normalizer;
mod script;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cofferdam_apiserver::{ApiServer, ServeOptions};
use tokio::process::Command;

use self::{
    deviations::KUBECTL_DEVIATIONS,
    normalizer::KubectlNormalizer,
    script::{KubectlCommand, RunMode},
};
use crate::{
    control_plane::{ApiUser, ControlPlane, ControlPlaneOptions},
    run::SuiteRun,
    snapshot_crds,
    wait::until,
};

/// Controllers whose work the embedded API includes: finalization of namespaces and garbage collection.
const CONTROLLERS: &str = "garbage-collector-controller,namespace-controller";
const NAMESPACE: &str = "kubectl";
/// Timeout of a command, and of all repetitions of one with [`RunMode::UntilEqual`].
const COMMAND_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum number of entries that the suite's error lists. The transcripts `real.txt` and `embedded.txt` have
/// the outputs of all commands.
const MAX_SHOWN_DIFFERENCES: usize = 12;

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let lines = script::parse(include_str!("kubectl/commands.txt"))?;
    let options =
        ControlPlaneOptions { controllers: Some(CONTROLLERS.to_owned()), ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(run, options).await?;
    snapshot_crds::install(plane.client()).await?;
    let server =
        ApiServer::new(cofferdam_apiserver::Options::default()).serve(ServeOptions::default()).await?;

    let mut real = KubectlRunner::new(run, "real", &fs::read_to_string(plane.kubeconfig(ApiUser::Admin)?)?)?;
    let mut embedded = KubectlRunner::new(run, "embedded", &server.kubeconfig())?;
    let mut comparison = KubectlComparison::default();
    for line in &lines {
        let (expected, found) = match line.mode {
            RunMode::Once => tokio::try_join!(real.run(line), embedded.run(line))?,
            RunMode::UntilEqual => run_until_equal(&real, &embedded, line).await?,
            RunMode::StoreVariable(_) => {
                tokio::try_join!(real.run_and_store(line), embedded.run_and_store(line))?
            }
        };
        real.append_transcript(line, &expected)?;
        embedded.append_transcript(line, &found)?;
        comparison.compare(line, &expected, &found);
    }
    comparison.check_deviations(&lines);
    fs::write(run.directory().join("real.txt"), &real.transcript)?;
    fs::write(run.directory().join("embedded.txt"), &embedded.transcript)?;
    server.shutdown().await;
    plane.stop().await?;
    ensure!(
        comparison.errors.is_empty(),
        "{} of {} commands: expected the same from both, but for what is kept; see real.txt and embedded.txt \
         in {}\n{}",
        comparison.errors.len(),
        lines.len(),
        run.directory().display(),
        comparison.errors.get(..MAX_SHOWN_DIFFERENCES).unwrap_or(&comparison.errors).join("\n"),
    );
    Ok(())
}

/// Repeats a command on both API servers until the two outputs are equal, for at most [`COMMAND_TIMEOUT`].
/// Returns the last outputs, equal or not.
async fn run_until_equal(
    real: &KubectlRunner,
    embedded: &KubectlRunner,
    line: &KubectlCommand,
) -> Result<(KubectlOutput, KubectlOutput)> {
    let mut last = None;
    let result = until("the same answer", COMMAND_TIMEOUT, async || {
        let (expected, found) = tokio::try_join!(real.run(line), embedded.run(line))?;
        let is_equal = expected == found;
        last = Some((expected, found));
        ensure!(is_equal, "they differ");
        Ok(())
    })
    .await;
    match last {
        Some(answers) => Ok(answers),
        None => result.and_then(|()| Err(anyhow::anyhow!("kubectl {}: not played", line.arguments))),
    }
}

/// Exit code and output of kubectl. The code is `None` if a signal ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KubectlOutput {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// kubectl with one API server.
struct KubectlRunner {
    program: PathBuf,
    manifests: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
    normalizer: KubectlNormalizer,
    variables: BTreeMap<String, String>,
    transcript: String,
}

impl KubectlRunner {
    fn new(run: &SuiteRun, name: &str, kubeconfig: &str) -> Result<Self> {
        // Paths of equal length, because kubectl aligns and wraps its output.
        let home = run.scratch().join(format!("kubectl-{name:->8}"));
        fs::create_dir_all(&home)?;
        let file = home.join("kubeconfig");
        fs::write(&file, kubeconfig).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self {
            program: run.peers().program("kubectl")?,
            manifests: Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suites/kubectl"),
            normalizer: KubectlNormalizer::new(&home)?,
            home,
            kubeconfig: file,
            variables: BTreeMap::new(),
            transcript: String::new(),
        })
    }

    async fn output(&self, line: &KubectlCommand) -> Result<KubectlOutput> {
        let arguments = line.arguments.split(' ').map(|word| {
            self.variables.iter().fold(word.to_owned(), |word, (name, value)| word.replace(name, value))
        });
        let output = Command::new(&self.program)
            .arg(format!("--namespace={NAMESPACE}"))
            .args(arguments)
            .current_dir(&self.manifests)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &self.home)
            .env("TMPDIR", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .env(
                "KUBE_EDITOR",
                format!("sed --in-place --file={}", self.manifests.join("edit.sed").display()),
            )
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(COMMAND_TIMEOUT, output)
            .await
            .with_context(|| {
                format!("kubectl {}: expected its end within {COMMAND_TIMEOUT:?}", line.arguments)
            })?
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        Ok(KubectlOutput {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    async fn run(&self, line: &KubectlCommand) -> Result<KubectlOutput> {
        let KubectlOutput { code, stdout, stderr } = self.output(line).await?;
        Ok(KubectlOutput {
            code,
            stdout: self.normalizer.normalize(&stdout),
            stderr: self.normalizer.normalize(&stderr),
        })
    }

    /// Stores stdout as a variable. Returns the exit code and stderr, which is not normalized.
    async fn run_and_store(&mut self, line: &KubectlCommand) -> Result<KubectlOutput> {
        let KubectlOutput { code, stdout, stderr } = self.output(line).await?;
        if let RunMode::StoreVariable(name) = &line.mode {
            ensure!(!stdout.is_empty(), "kubectl {}: nothing for {name}: {stderr}", line.arguments);
            self.variables.insert(name.clone(), stdout);
        }
        Ok(KubectlOutput { code, stdout: String::new(), stderr })
    }

    fn append_transcript(&mut self, line: &KubectlCommand, output: &KubectlOutput) -> Result<()> {
        let KubectlOutput { code, stdout, stderr } = output;
        let code = code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        writeln!(self.transcript, "$ kubectl {}\n{stdout}", line.arguments)?;
        writeln!(self.transcript, "stderr: {stderr}\nends with {code}\n")?;
        Ok(())
    }
}

/// Errors of the comparison: differences without a deviation, deviations without a difference, and deviations
/// that no command uses or that are not listed.
#[derive(Debug, Default)]
struct KubectlComparison {
    errors: Vec<String>,
}

impl KubectlComparison {
    fn compare(&mut self, line: &KubectlCommand, expected: &KubectlOutput, found: &KubectlOutput) {
        let location = format!("line {}: kubectl {}", line.line, line.arguments);
        match (&line.deviation, expected == found) {
            (None, true) | (Some(_), false) => {}
            (Some(id), true) => {
                let reason = KUBECTL_DEVIATIONS.iter().find(|deviation| deviation.id == id);
                let reason = reason.map_or_else(String::new, |deviation| {
                    format!(": {}, because {}", deviation.difference, deviation.reason)
                });
                self.errors.push(format!("{location}: does not differ any more: expected ~{id}{reason}"));
            }
            (None, false) => {
                let mut text = location;
                for (what, expected, found) in [
                    ("code", &format!("{:?}", expected.code), &format!("{:?}", found.code)),
                    ("stdout", &expected.stdout, &found.stdout),
                    ("stderr", &expected.stderr, &found.stderr),
                ] {
                    if let Some((expected, found)) = first_difference(expected, found) {
                        let _ = write!(text, "\n  {what}: expected {expected}\n  {what}: found    {found}");
                    }
                }
                self.errors.push(text);
            }
        }
    }

    /// Checks that every deviation is used, and every used deviation is listed.
    fn check_deviations(&mut self, lines: &[KubectlCommand]) {
        let used: BTreeSet<&str> = lines.iter().filter_map(|line| line.deviation.as_deref()).collect();
        let known: BTreeSet<&str> = KUBECTL_DEVIATIONS.iter().map(|deviation| deviation.id).collect();
        for id in used.symmetric_difference(&known) {
            self.errors.push(format!("~{id}: expected it both at a command and in the list of what is kept"));
        }
    }
}

/// The first line in which two texts differ, from each text. `None` if the texts are equal. `(the end)`
/// stands for the line of a text that has no more lines.
fn first_difference<'a>(expected: &'a str, found: &'a str) -> Option<(&'a str, &'a str)> {
    let end = "(the end)";
    let (mut left, mut right) = (expected.split('\n'), found.split('\n'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return None,
            (left, right) if left == right => {}
            (left, right) => return Some((left.unwrap_or(end), right.unwrap_or(end))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stdout: &str) -> KubectlOutput {
        KubectlOutput { code: Some(0), stdout: stdout.to_owned(), stderr: String::new() }
    }

    fn errors(text: &str, expected: &str, found: &str) -> Vec<String> {
        let mut comparison = KubectlComparison::default();
        for line in script::parse(text).unwrap() {
            comparison.compare(&line, &output(expected), &output(found));
        }
        comparison.errors
    }

    #[test]
    fn unexplained_differences_and_unused_deviations_are_errors() {
        assert_eq!(errors("get pvc", "a\nb", "a\nb"), Vec::<String>::new());
        let text = "line 1: kubectl get pvc\n  stdout: expected b\n  stdout: found    (the end)";
        assert_eq!(errors("get pvc", "a\nb", "a"), [text]);
        assert_eq!(errors("~version version", "a", "b"), Vec::<String>::new());
        let text = "line 1: kubectl version: does not differ any more: expected ~version: `version` names \
             our \
                    version, because it is our server";
        assert_eq!(errors("~version version", "a", "a"), [text]);
    }

    #[test]
    fn every_deviation_is_used_by_a_command() {
        let mut comparison = KubectlComparison::default();
        comparison.check_deviations(&script::parse(include_str!("kubectl/commands.txt")).unwrap());
        assert_eq!(comparison.errors, Vec::<String>::new());
        comparison.check_deviations(&script::parse("~other get pvc").unwrap());
        assert_eq!(comparison.errors.len(), KUBECTL_DEVIATIONS.len() + 1, "{:?}", comparison.errors);
    }
}
