//! All roles in one process, killed with -9 again and again, while claims and pods come and go on a real API and a real scheduler.
//! What nodes say is said by us: no container runs, so that it is our program that has to do the work.

mod nodes;
mod users;
mod world;

use std::{
    cell::Cell,
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client, api::PostParams};

use crate::{
    account::{self, ALL, Account},
    chance::chance,
    claims::Claims,
    cofferdam::{self, MemoryDriver},
    control_plane::{self, BUT_OURS, ControlPlane, Options},
    pod,
    process::Process,
    run::Run,
    sidecar::plain,
    wait::until,
};
use nodes::FakeNode;
use users::Users;
use world::World;

const DRIVER: &str = "kills.conformance.cofferdam.dev";
const NAMESPACE: &str = "kills";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const KILLS: usize = 50;
/// Users who come between two deaths; each has a claim and two pods.
const WAVE: usize = 3;
/// After how many steps of users a process dies at most that is to die at work: fewer than a wave makes.
const STEPS: usize = 8;
/// Of the deaths, how many have to hit a process in the middle of work, for the others to count. Some 25 do.
const IN_WORK: usize = 15;
const READY: Duration = Duration::from_secs(120);
/// How long it may take after the last death until nothing is left.
const LONG: Duration = Duration::from_secs(240);
/// Pause between two looks of the nodes and of the users.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn run(run: &Run) -> Result<()> {
    let controllers = format!("{BUT_OURS},-node-lifecycle-controller");
    let options = Options { controllers: Some(controllers), scheduler: true, ..Options::default() };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client().clone();
    let driver = MemoryDriver::new(run, DRIVER)?;
    let object: CSIDriver = serde_json::from_value(pod::attached_driver(DRIVER))?;
    Api::all(client.clone()).create(&PostParams::default(), &object).await?;
    // A namespace, and a class of the same name.
    Claims::new(&client, NAMESPACE, DRIVER).await?;
    let mut nodes = Vec::new();
    for name in NODES {
        nodes.push(FakeNode::new(&client, name, DRIVER).await?);
    }
    let account = Account::new(run, &plane, &ALL).await?;
    let mut ours = Ours::start(run, &account, &driver).await?;

    let course = Course::default();
    let mut users = Users::new(&client, NAMESPACE);
    tokio::try_join!(go_on(&client, &mut nodes, &mut users, &course), deaths(run, &mut ours, &course))?;
    let (volumes, claims) = (users.volumes(), KILLS * WAVE);
    ensure!(volumes == claims, "{volumes} volumes for {claims} claims");
    until("nothing is left in the API", LONG, async || {
        let left = World::look(&client).await?.left();
        ensure!(left.is_empty(), "left: {left}");
        Ok(())
    })
    .await?;
    ours.process.stop().await?;
    let stored = driver.volumes(run).await?;
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    plane.stop().await
}

/// How far all is: what one half of the suite tells the other.
#[derive(Debug, Default)]
struct Course {
    /// How many users are to have come.
    released: Cell<usize>,
    /// How many steps they have made, and how many of them are gone.
    progress: Cell<(usize, usize)>,
}

/// Lets nodes and users do their part until all users have come and are gone.
async fn go_on(client: &Client, nodes: &mut [FakeNode], users: &mut Users, course: &Course) -> Result<()> {
    while course.progress.get().1 < KILLS * WAVE {
        users.come(course.released.get()).await?;
        let world = World::look(client).await?;
        for number in 0..nodes.len() {
            let others = nodes.iter().enumerate().filter(|(other, _)| *other != number);
            let elsewhere: BTreeSet<String> = others.flat_map(|(_, node)| node.mounted()).cloned().collect();
            if let Some(node) = nodes.get_mut(number) {
                node.act(&world, &elsewhere).await?;
            }
        }
        users.act(&world).await?;
        course.progress.set(users.progress());
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Kills our program, each time after another wave has come, and then lets it work.
async fn deaths(run: &Run, ours: &mut Ours, course: &Course) -> Result<()> {
    let mut chance = chance()?;
    // How long a start takes here and now: every other one dies around it, and the others at work.
    let started = Instant::now();
    ours.process.stop().await?;
    ours.process.again()?;
    ours.ready().await?;
    let start = started.elapsed();
    let (mut ready, mut in_work, mut before) = (0, 0, 0);
    for kill in 1..=KILLS {
        course.released.set(kill * WAVE);
        if kill % 2 == 0 {
            let steps = before + chance.usize(1..=STEPS);
            until("work goes on", LONG, async || {
                let made = course.progress.get().0;
                ensure!(made >= steps, "{made} steps were made, of {steps}");
                Ok(())
            })
            .await?;
        } else {
            let life = start.mul_f64(0.3 + chance.f64() * 1.4);
            tokio::time::sleep(life).await;
        }
        ready += usize::from(ours.is_ready().await);
        let (made, gone) = course.progress.get();
        in_work += usize::from(made > before && gone < kill * WAVE);
        ours.process.kill().await?;
        before = course.progress.get().0;
        ours.process.again()?;
    }
    let ended = Instant::now();
    let gone = course.progress.get().1;
    run.tell(&format!("{KILLS} times kill -9: {ready} of the processes were ready, {in_work} died at work"))?;
    ensure!(in_work >= IN_WORK, "{in_work} of {KILLS} processes died at work: expected at least {IN_WORK}");
    ours.ready().await?;
    let claims = KILLS * WAVE;
    until("everybody is gone", LONG, async || {
        let (made, gone) = course.progress.get();
        ensure!(gone == claims, "{gone} of {claims} are, {made} steps were made");
        Ok(())
    })
    .await?;
    run.tell(&format!(
        "{claims} claims, each with two pods on different nodes: {gone} were gone at the last death, all {:.1} s later",
        ended.elapsed().as_secs_f64()
    ))
}

/// Our program, with every role.
struct Ours {
    process: Process,
    client: Client,
}

impl Ours {
    async fn start(run: &Run, account: &Account, driver: &MemoryDriver) -> Result<Self> {
        let port = run.port()?;
        let spec = cofferdam::spec(run, account.kubeconfig(), &ALL, driver, port)
            .arg(format_args!("--namespace={}", account::NAMESPACE))
            // No scan may find what a death has left before we do.
            .arg("--orphan-scan-interval=off");
        let mut ours = Self { process: Process::start(run, spec)?, client: plain(port)? };
        ours.ready().await?;
        Ok(ours)
    }

    async fn ready(&mut self) -> Result<()> {
        let client = &self.client;
        self.process.ready(READY, async || control_plane::get(client, "/readyz").await).await
    }

    async fn is_ready(&self) -> bool {
        control_plane::get(&self.client, "/readyz").await.is_ok()
    }
}
