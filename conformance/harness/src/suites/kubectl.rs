//! kubectl is told the same on a real API and on the embedded one, and says the same.

mod kept;
mod normal;
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
    kept::KEPT,
    normal::Normal,
    script::{Line, Mode},
};
use crate::{
    control_plane::{ControlPlane, Options, User},
    run::Run,
    wait::until,
};

/// What the embedded API does by itself, beside the API: it ends namespaces and what nobody owns any more.
const CONTROLLERS: &str = "garbage-collector-controller,namespace-controller";
const NAMESPACE: &str = "shown";
/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(180);
/// Differences that an error shows; all of them are in the transcripts.
const SHOWN: usize = 12;

pub(super) async fn run(run: &Run) -> Result<()> {
    let lines = script::lines(include_str!("kubectl/commands.txt"))?;
    let options = Options { controllers: Some(CONTROLLERS.to_owned()), ..Options::default() };
    let plane = ControlPlane::start(run, options).await?;
    let serving =
        ApiServer::new(cofferdam_apiserver::Options::default()).serve(ServeOptions::default()).await?;

    let mut real = Player::new(run, "real", &fs::read_to_string(plane.kubeconfig(User::Admin)?)?)?;
    let mut embedded = Player::new(run, "embedded", &serving.kubeconfig())?;
    let mut verdict = Verdict::default();
    for line in &lines {
        let (expected, found) = match line.mode {
            Mode::Once => tokio::try_join!(real.play(line), embedded.play(line))?,
            Mode::Until => settled(&real, &embedded, line).await?,
            Mode::Variable(_) => tokio::try_join!(real.learn(line), embedded.learn(line))?,
        };
        real.note(line, &expected)?;
        embedded.note(line, &found)?;
        verdict.add(line, &expected, &found);
    }
    verdict.unused(&lines);
    fs::write(run.directory().join("real.txt"), &real.transcript)?;
    fs::write(run.directory().join("embedded.txt"), &embedded.transcript)?;
    serving.shutdown().await;
    plane.stop().await?;
    ensure!(
        verdict.errors.is_empty(),
        "{} of {} commands: expected the same from both, but for what is kept; see real.txt and embedded.txt in {}\n{}",
        verdict.errors.len(),
        lines.len(),
        run.directory().display(),
        verdict.errors.get(..SHOWN).unwrap_or(&verdict.errors).join("\n"),
    );
    Ok(())
}

/// Plays a line until both answer the same; what they said last when they do not.
async fn settled(real: &Player, embedded: &Player, line: &Line) -> Result<(Answer, Answer)> {
    let mut last = None;
    let reached = until("the same answer", LIMIT, async || {
        let (expected, found) = tokio::try_join!(real.play(line), embedded.play(line))?;
        let same = expected == found;
        last = Some((expected, found));
        ensure!(same, "they differ");
        Ok(())
    })
    .await;
    match last {
        Some(answers) => Ok(answers),
        None => reached.and_then(|()| Err(anyhow::anyhow!("kubectl {}: not played", line.command))),
    }
}

/// What kubectl said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// kubectl before one API.
struct Player {
    program: PathBuf,
    manifests: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
    normal: Normal,
    variables: BTreeMap<String, String>,
    transcript: String,
}

impl Player {
    fn new(run: &Run, name: &str, kubeconfig: &str) -> Result<Self> {
        // Of one length, because kubectl aligns and breaks what it prints.
        let home = run.scratch().join(format!("kubectl-{name:->8}"));
        fs::create_dir_all(&home)?;
        let file = home.join("kubeconfig");
        fs::write(&file, kubeconfig).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self {
            program: run.peers().program("kubectl")?,
            manifests: Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suites/kubectl"),
            normal: Normal::new(&home)?,
            home,
            kubeconfig: file,
            variables: BTreeMap::new(),
            transcript: String::new(),
        })
    }

    async fn output(&self, line: &Line) -> Result<Answer> {
        let arguments = line.command.split(' ').map(|word| {
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
        let output = tokio::time::timeout(LIMIT, output)
            .await
            .with_context(|| format!("kubectl {}: expected its end within {LIMIT:?}", line.command))?
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        Ok(Answer {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    async fn play(&self, line: &Line) -> Result<Answer> {
        let Answer { code, stdout, stderr } = self.output(line).await?;
        Ok(Answer { code, stdout: self.normal.text(&stdout), stderr: self.normal.text(&stderr) })
    }

    /// Keeps what is printed for the lines below. The answer is only how it ended.
    async fn learn(&mut self, line: &Line) -> Result<Answer> {
        let Answer { code, stdout, stderr } = self.output(line).await?;
        if let Mode::Variable(name) = &line.mode {
            ensure!(!stdout.is_empty(), "kubectl {}: nothing for {name}: {stderr}", line.command);
            self.variables.insert(name.clone(), stdout);
        }
        Ok(Answer { code, stdout: String::new(), stderr })
    }

    fn note(&mut self, line: &Line, answer: &Answer) -> Result<()> {
        let Answer { code, stdout, stderr } = answer;
        let code = code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        writeln!(self.transcript, "$ kubectl {}\n{stdout}", line.command)?;
        writeln!(self.transcript, "stderr: {stderr}\nends with {code}\n")?;
        Ok(())
    }
}

/// What the two do not agree on.
#[derive(Debug, Default)]
struct Verdict {
    errors: Vec<String>,
}

impl Verdict {
    fn add(&mut self, line: &Line, expected: &Answer, found: &Answer) {
        let at = format!("line {}: kubectl {}", line.number, line.command);
        match (&line.kept, expected == found) {
            (None, true) | (Some(_), false) => {}
            (Some(id), true) => {
                let reason = KEPT.iter().find(|kept| kept.id == id);
                let reason =
                    reason.map_or_else(String::new, |kept| format!(": {}, because {}", kept.what, kept.why));
                self.errors.push(format!("{at}: does not differ any more: expected ~{id}{reason}"));
            }
            (None, false) => {
                let mut text = at;
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

    /// Lists what is said to be kept and is not looked at, and what is kept without a reason.
    fn unused(&mut self, lines: &[Line]) {
        let used: BTreeSet<&str> = lines.iter().filter_map(|line| line.kept.as_deref()).collect();
        let known: BTreeSet<&str> = KEPT.iter().map(|kept| kept.id).collect();
        for id in used.symmetric_difference(&known) {
            self.errors.push(format!("~{id}: expected it both at a command and in the list of what is kept"));
        }
    }
}

/// The first line in which two texts differ.
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

    fn answer(stdout: &str) -> Answer {
        Answer { code: Some(0), stdout: stdout.to_owned(), stderr: String::new() }
    }

    fn errors(text: &str, expected: &str, found: &str) -> Vec<String> {
        let mut verdict = Verdict::default();
        for line in script::lines(text).unwrap() {
            verdict.add(&line, &answer(expected), &answer(found));
        }
        verdict.errors
    }

    #[test]
    fn a_difference_is_an_error_and_so_is_one_that_is_kept_for_nothing() {
        assert_eq!(errors("get pvc", "a\nb", "a\nb"), Vec::<String>::new());
        let text = "line 1: kubectl get pvc\n  stdout: expected b\n  stdout: found    (the end)";
        assert_eq!(errors("get pvc", "a\nb", "a"), [text]);
        assert_eq!(errors("~version version", "a", "b"), Vec::<String>::new());
        let text = "line 1: kubectl version: does not differ any more: expected ~version: `version` names our \
                    version, because it is our server";
        assert_eq!(errors("~version version", "a", "a"), [text]);
    }

    #[test]
    fn every_difference_that_is_kept_is_looked_at() {
        let mut verdict = Verdict::default();
        verdict.unused(&script::lines(include_str!("kubectl/commands.txt")).unwrap());
        assert_eq!(verdict.errors, Vec::<String>::new());
        verdict.unused(&script::lines("~other get pvc").unwrap());
        assert_eq!(verdict.errors.len(), KEPT.len() + 1, "{:?}", verdict.errors);
    }
}
