//! `make bench-peers`: one load, answered by Kubernetes' own controllers, by ours, and by nobody.
//!
//! Each stack has a control plane of its own, as fresh as the others'. Everything is on one machine, so figures are of that
//! machine; what counts are the ratios of one run.

mod attachments;
mod ceiling;
mod contenders;
mod held;
mod load;
mod measure;
mod placed;
mod pods;
mod report;
mod rounds;
mod stacks;

use std::{
    env, fs,
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde::Serialize;

use self::{
    ceiling::Volumes,
    contenders::Task,
    held::Held,
    load::{Answered, Load},
    measure::{Cost, Reading},
    pods::OfNode,
    stacks::{STACKS, Stack, Whose},
};
use crate::{
    control_plane::{ControlPlane, Options},
    process::Process,
    run::Run,
};

/// How many claims a load has, if `CLAIMS` does not say.
const CLAIMS: usize = 2000;
/// How many rounds there are, if `ROUNDS` does not say.
const ROUNDS: usize = 3;
/// How many claims come alone.
const ALONE: usize = 50;
/// What the API without anybody is called.
const ALONE_NAME: &str = "API alone";

/// What a load asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Flow {
    /// A claim alone becomes Bound to a new volume.
    Alone,
    /// Claims become Bound to new volumes.
    Bound,
    /// Claims are deleted, and their volumes go.
    Gone,
    /// Claims become Bound to volumes that were made before.
    Static,
    /// Volumes are attached to nodes.
    Attached,
    /// Volumes are detached again.
    Detached,
    /// Claims are grown.
    Grown,
    /// Pods are placed on nodes, and their volumes are there.
    Placed,
    /// Pods have gone from nodes, and their volumes too.
    Left,
    /// Pods run that have a new volume.
    Pods,
}

/// One load and how it was answered.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    flow: Flow,
    objects: usize,
    /// Seconds from the first request to the last answer.
    seconds: f64,
    per_second: f64,
    /// Milliseconds from a request to its answer.
    p50: f64,
    p99: f64,
    cost: Cost,
}

/// All loads on one stack.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    name: String,
    about: String,
    /// Whose controllers they are; nobody's for the API alone.
    #[serde(skip)]
    whose: Option<Whose>,
    /// The processes whose work is compared.
    controllers: Vec<String>,
    loads: Vec<Measured>,
}

impl Figures {
    fn of(&self, flow: Flow) -> Option<&Measured> {
        self.loads.iter().find(|measured| measured.flow == flow)
    }
}

/// What was measured of each stack, side by side.
#[derive(Clone, Debug, Default, Serialize)]
struct Results {
    claims: Vec<Figures>,
    attachments: Vec<Figures>,
    growth: Vec<Figures>,
    placed: Vec<Figures>,
    pods: Vec<Figures>,
    node: Option<OfNode>,
    held: Option<Held>,
}

/// What a variable says; make hands on an empty one where it was given none.
fn number(variable: &str, default: usize) -> Result<usize> {
    let number = match env::var(variable) {
        Ok(text) if !text.is_empty() => {
            text.parse().with_context(|| format!("{variable}={text}: expected a number"))?
        }
        _ => default,
    };
    ensure!(number > 0, "{variable}=0: expected at least one");
    Ok(number)
}

/// A group of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Claims,
    Attachments,
    Growth,
    Placed,
    Pods,
    Held,
}

/// All groups and what `LOADS` calls them.
const PARTS: [(&str, Part); 6] = [
    ("claims", Part::Claims),
    ("attachments", Part::Attachments),
    ("growth", Part::Growth),
    ("placed", Part::Placed),
    ("pods", Part::Pods),
    ("held", Part::Held),
];

/// The groups that `LOADS` names, separated by commas; absent where it names none.
fn chosen() -> Result<Option<Vec<Part>>> {
    let text = env::var("LOADS").unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let part = |name: &str| {
        let found = PARTS.iter().find(|(known, _)| *known == name).map(|(_, part)| *part);
        found.with_context(|| {
            format!("LOADS={text}: {name:?} is none of {}", PARTS.map(|(name, _)| name).join(", "))
        })
    };
    text.split(',').map(part).collect::<Result<_>>().map(Some)
}

/// Measures everything, or what `LOADS` names, and writes it down. What is a part only is left in the run's directory.
///
/// # Errors
/// When something does not run, or a claim is not answered.
pub(crate) async fn run(run: &Run) -> Result<()> {
    ensure!(!cfg!(debug_assertions), "this build is not optimised: expected `make bench-peers`");
    let claims = number("CLAIMS", CLAIMS)?;
    let chosen = chosen()?;
    let output = env::var_os("OUTPUT").filter(|_| chosen.is_none());
    let output = output.map_or_else(|| run.directory().to_owned(), PathBuf::from);
    let is_chosen = |part: Part| chosen.as_ref().is_none_or(|chosen| chosen.contains(&part));
    let count = number("ROUNDS", ROUNDS)?;
    // Memory at rest does not drift as speed does: once is enough.
    let held = match is_chosen(Part::Held) {
        true => Some(held::measured(run, claims * 5).await?),
        false => None,
    };
    let mut all = Vec::new();
    let mut report = String::new();
    for number in 1..=count {
        // For who waits: a round takes minutes.
        let _ = writeln!(io::stderr(), "round {number} of {count}");
        all.push(round(run, claims, is_chosen).await?);
        let medians = Results { held: held.clone(), ..rounds::medians(&all) };
        let json = serde_json::json!({ "medians": &medians, "rounds": &all });
        // Who ends it early has the rounds that were.
        fs::write(output.join("benchmarks.json"), serde_json::to_string_pretty(&json)? + "\n")?;
        report = report::markdown(&medians, claims, number);
        fs::write(output.join("benchmarks.md"), &report)?;
    }
    report::print(&report)
}

/// Every load that is chosen on every stack, once.
async fn round(run: &Run, claims: usize, is_chosen: impl Fn(Part) -> bool) -> Result<Results> {
    let mut all = Results::default();
    if is_chosen(Part::Claims) {
        for stack in STACKS {
            all.claims.push(answered(run, stack, claims).await?);
        }
        all.claims.push(unanswered(run, claims).await?);
    }
    if is_chosen(Part::Attachments) {
        all.attachments = contenders::measured(run, Task::Attach, claims / 2).await?;
    }
    if is_chosen(Part::Growth) {
        all.growth = contenders::measured(run, Task::Grow, claims / 2).await?;
    }
    if is_chosen(Part::Placed) {
        for whose in [Whose::Theirs, Whose::Ours] {
            all.placed.push(placed::measured(run, whose, claims / 4).await?);
        }
        all.placed.push(placed::unanswered(run, claims / 4).await?);
    }
    if is_chosen(Part::Pods) {
        for whose in [Whose::Theirs, Whose::Ours] {
            let (figures, node) = pods::measured(run, whose, pods::count(claims)).await?;
            all.pods.push(figures);
            all.node = all.node.or(node);
        }
    }
    Ok(all)
}

/// One control plane, and the counters of what runs on it.
struct Ground<'a> {
    name: &'static str,
    client: Client,
    processes: Vec<&'a Process>,
    loads: Vec<Measured>,
    last: Reading,
    /// Watches that are open although nobody controls.
    watches: f64,
}

impl<'a> Ground<'a> {
    async fn new(
        name: &'static str,
        plane: &'a ControlPlane,
        others: impl Iterator<Item = &'a Process>,
        watches: f64,
    ) -> Result<Self> {
        let processes: Vec<&Process> = [&plane.api, &plane.etcd].into_iter().chain(others).collect();
        let client = plane.client().clone();
        let last = Reading::at_rest(&client, &processes).await?;
        Ok(Self { name, client, processes, loads: Vec::new(), last, watches })
    }

    /// What was measured. The API can end: nobody has a connection to it any more.
    fn done(self) -> Vec<Measured> {
        self.loads
    }

    /// What is done from now on belongs to the next load.
    async fn begin(&mut self) -> Result<()> {
        self.last = Reading::at_rest(&self.client, &self.processes).await?;
        Ok(())
    }

    async fn end(&mut self, flow: Flow, answered: &Answered) -> Result<()> {
        let objects = answered.each.len();
        let now = Reading::at_rest(&self.client, &self.processes).await?;
        let mut cost = now.since(&self.last, objects, &self.processes)?;
        cost.watches -= self.watches;
        let seconds = answered.took.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a load has fewer objects than a float has digits")]
        let per_second = objects as f64 / seconds;
        let milliseconds = |percent| answered.quantile(percent).as_secs_f64() * 1000.0;
        let (p50, p99) = (milliseconds(50), milliseconds(99));
        // For who waits: a run takes minutes.
        let _ = writeln!(
            io::stderr(),
            "  {}: {flow:?}, {objects} at {per_second:.1} /s, p50 {p50:.1} ms, p99 {p99:.1} ms",
            self.name
        );
        self.loads.push(Measured { flow, objects, seconds, per_second, p50, p99, cost });
        self.last = now;
        Ok(())
    }
}

async fn start(run: &Run) -> Result<ControlPlane> {
    ControlPlane::start(run, Options { unlimited: true, unaudited: true, ..Options::default() }).await
}

/// A stack answers all loads.
async fn answered(run: &Run, stack: &Stack, claims: usize) -> Result<Figures> {
    let mut plane = start(run).await?;
    let watches = Reading::at_rest(plane.client(), &[]).await?.watches();
    let controllers = stack.start(run, &mut plane).await?;
    let client = plane.client().clone();
    let mut ground = Ground::new(stack.name, &plane, controllers.processes(), watches).await?;

    let alone = Load::new(&client, "alone", Some(controllers.driver)).await?;
    ground.begin().await?;
    let answered = alone.one_by_one(ALONE).await?;
    ground.end(Flow::Alone, &answered).await?;

    let load = Load::new(&client, "load", Some(controllers.driver)).await?;
    ground.begin().await?;
    let (answered, volumes) = load.bound(claims).await?;
    ground.end(Flow::Bound, &answered).await?;
    let answered = load.gone(&volumes).await?;
    ground.end(Flow::Gone, &answered).await?;

    let load = Load::new(&client, "static", None).await?;
    load.volumes(claims).await?;
    load.available(claims).await?;
    ground.begin().await?;
    let (answered, _) = load.bound(claims).await?;
    ground.end(Flow::Static, &answered).await?;

    let figures = Figures {
        name: stack.name.to_owned(),
        about: stack.about.to_owned(),
        whose: Some(stack.whose),
        controllers: controllers.names(),
        loads: ground.done(),
    };
    controllers.stop().await?;
    drop((alone, load, client));
    plane.stop().await?;
    Ok(figures)
}

/// The same writes without anybody who controls.
async fn unanswered(run: &Run, claims: usize) -> Result<Figures> {
    let plane = start(run).await?;
    let client = plane.client().clone();
    let watches = Reading::at_rest(&client, &[]).await?.watches();
    let mut ground = Ground::new(ALONE_NAME, &plane, std::iter::empty(), watches).await?;

    let alone = Load::new(&client, "alone", None).await?;
    ground.begin().await?;
    let answered = ceiling::one_by_one(&alone, ALONE).await?;
    ground.end(Flow::Alone, &answered).await?;

    let load = Load::new(&client, "load", None).await?;
    ground.begin().await?;
    let answered = ceiling::bound(&load, claims, Volumes::Provisioned).await?;
    ground.end(Flow::Bound, &answered).await?;
    let answered = ceiling::gone(&load, claims).await?;
    ground.end(Flow::Gone, &answered).await?;

    let load = Load::new(&client, "static", None).await?;
    load.volumes(claims).await?;
    ground.begin().await?;
    let answered = ceiling::bound(&load, claims, Volumes::Premade).await?;
    ground.end(Flow::Static, &answered).await?;

    let loads = ground.done();
    drop((alone, load, client));
    plane.stop().await?;
    Ok(Figures {
        name: ALONE_NAME.to_owned(),
        about: "five writes for each claim by the users themselves, no controller, nobody watches".to_owned(),
        whose: None,
        controllers: Vec::new(),
        loads,
    })
}
