//! `make bench-peers`: one load, answered by Kubernetes' own controllers, by ours, and by nobody.
//!
//! Each stack has a control plane of its own, as fresh as the others'. Everything is on one machine, so figures are of that
//! machine; what counts are the ratios of one run.

mod attachers;
mod attachments;
mod ceiling;
mod load;
mod measure;
mod pods;
mod report;
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
    attachers::ATTACHERS,
    ceiling::Volumes,
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
    pods: Vec<Figures>,
    node: Option<OfNode>,
}

/// Measures everything and writes it down.
///
/// # Errors
/// When something does not run, or a claim is not answered.
pub(crate) async fn run(run: &Run) -> Result<()> {
    ensure!(!cfg!(debug_assertions), "this build is not optimised: expected `make bench-peers`");
    let claims = match env::var("CLAIMS") {
        Ok(text) if !text.is_empty() => {
            text.parse().with_context(|| format!("CLAIMS={text}: expected a number"))?
        }
        _ => CLAIMS,
    };
    let output = env::var_os("OUTPUT").map_or_else(|| run.directory().to_owned(), PathBuf::from);
    let mut all = Results::default();
    for stack in STACKS {
        all.claims.push(answered(run, stack, claims).await?);
    }
    all.claims.push(unanswered(run, claims).await?);
    for attacher in ATTACHERS {
        all.attachments.push(attacher.measured(run, claims / 2).await?);
    }
    all.attachments.push(attachers::nobody(run, claims / 2).await?);
    for whose in [Whose::Theirs, Whose::Ours] {
        let (figures, node) = pods::measured(run, whose, pods::count(claims)).await?;
        all.pods.push(figures);
        all.node = all.node.or(node);
    }
    fs::write(output.join("benchmarks.json"), serde_json::to_string_pretty(&all)? + "\n")?;
    let report = report::markdown(&all, claims);
    fs::write(output.join("benchmarks.md"), &report)?;
    report::print(&report)
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
