//! Leader election with a Lease, by the rules of client-go's package `leaderelection`.
//!
//! The process that holds the Lease renews it every retry period. Another process takes the Lease once it has
//! not observed a renewal for the Lease's duration. Each process measures time from its own observations, so
//! the clocks of machines need not agree. The holder stops before the end of the duration: it counts from the
//! moment before the renewing request was sent.

mod lease_spec;
mod lease_watch;

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use cofferdam_domain::{
    term::{BootClock, PermitSource as _, Term},
    text::DurationText,
};
use fnv::FnvHasher;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use lease_spec::LeaseSpec;
use lease_watch::LeaseWatch;

use crate::{
    api::{ApiClient, ApiError, ApiResource},
    clock::{Clock, boot_clock},
    events::{self, Event, EventType, ObjectReference},
    metrics::Metrics,
};

/// The API resource of Leases.
const LEASE: ApiResource = ApiResource {
    group: "coordination.k8s.io",
    version: "v1",
    kind: "Lease",
    plural: "leases",
    namespaced: true,
};

/// Largest factor by which a retry period is extended at random, as in client-go (`JitterFactor`).
const JITTER_FACTOR: f64 = 1.2;
/// Time after the end of its Lease after which a leader that has not renewed it is unhealthy, as in
/// csi-lib-utils (`DefaultHealthCheckTimeout`).
const HEALTH_TOLERANCE: Duration = Duration::from_secs(20);
/// Time within which the event of a released Lease is sent.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest period between two attempts to renew after a failure, and, before its extension, to acquire while
/// the API server is unavailable. client-go waits for the retry period; here work resumes soon after an
/// outage.
const FAILURE_RETRY_PERIOD: Duration = Duration::from_secs(1);
/// Period in which a leader that waits compares its clocks, and the shortest suspension that ends the wait.
const SUSPENSION_CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Resolution of the times of a Lease.
const MICROSECOND: SignedDuration = SignedDuration::from_micros(1);
/// A clock that is behind the last write by less than this stands still. One that is farther behind was set.
const MAX_STANDSTILL: SignedDuration = SignedDuration::from_secs(1);
/// Number of conflicts after which an attempt waits for the retry period, as after another error.
const MAX_CONFLICTS: usize = 3;
/// `reason` of events.
const EVENT_REASON: &str = "LeaderElection";
/// Format of `metav1.MicroTime`.
const MICRO_TIME: &str = "%Y-%m-%dT%H:%M:%S%.6fZ";
/// Writes without a response that are kept: more than are sent within kube-apiserver's default request
/// timeout of 60 s with the default retry period.
const MAX_IN_DOUBT: usize = 16;

/// Durations of leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDurations {
    /// Time without an observed renewal after which another process takes the Lease. At least one second.
    pub lease_duration: Duration,
    /// Time without a successful renewal after which the holder stops leading.
    pub renew_deadline: Duration,
    /// Time between two attempts to acquire or to renew the Lease.
    pub retry_period: Duration,
}

/// Durations that do not fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLeaseDurations {
    /// The Lease's duration is shorter than the unit of the API.
    #[error("the lease duration is {}: expected at least 1s", DurationText(*.0))]
    TooShort(Duration),
    /// The holder would lead after the end of the Lease.
    #[error(
        "the lease duration is {}: expected more than the renew deadline, {}",
        DurationText(*.lease_duration),
        DurationText(*.renew_deadline)
    )]
    RenewDeadline {
        /// The Lease's duration.
        lease_duration: Duration,
        /// The renew deadline.
        renew_deadline: Duration,
    },
    /// The holder could stop before its second attempt.
    #[error(
        "the renew deadline is {}: expected more than 1.2 retry periods of {}",
        DurationText(*.renew_deadline),
        DurationText(*.retry_period)
    )]
    RetryPeriod {
        /// The renew deadline.
        renew_deadline: Duration,
        /// The retry period.
        retry_period: Duration,
    },
}

impl LeaseDurations {
    /// Checks that the durations fit each other. Source: client-go's `NewLeaderElector`.
    ///
    /// # Errors
    /// [`InvalidLeaseDurations`]
    pub fn validate(self) -> Result<(), InvalidLeaseDurations> {
        let Self { lease_duration, renew_deadline, retry_period } = self;
        if lease_duration < Duration::from_secs(1) {
            return Err(InvalidLeaseDurations::TooShort(lease_duration));
        }
        if lease_duration <= renew_deadline {
            return Err(InvalidLeaseDurations::RenewDeadline { lease_duration, renew_deadline });
        }
        if renew_deadline <= retry_period.mul_f64(JITTER_FACTOR) {
            return Err(InvalidLeaseDurations::RetryPeriod { renew_deadline, retry_period });
        }
        Ok(())
    }

    /// `leaseDurationSeconds`, rounded up: after a shorter time, another candidate would take the Lease within
    /// the renew deadline of its holder.
    fn lease_seconds(self) -> i64 {
        let fraction = u64::from(self.lease_duration.subsec_nanos() > 0);
        i64::try_from(self.lease_duration.as_secs().saturating_add(fraction)).unwrap_or(i64::MAX)
    }
}

impl Default for LeaseDurations {
    /// The defaults of the sidecars.
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
        }
    }
}

/// Returns the name with a random part, which differs in each call. A process whose identity is the bare name
/// of its host would take the record of another one for its own.
pub fn with_random_part(name: &str) -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{name}-{random:016x}")
}

/// Converts a name to the name of a Lease, as csi-lib-utils does: characters other than ASCII letters, digits
/// and dashes become dashes, and a name that then ends with a dash gets an `X`.
pub fn sanitize_name(name: &str) -> String {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut name: String = name.chars().map(|c| if is_kept(c) { c } else { '-' }).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

/// A Lease, and the process that competes for it.
#[derive(Clone, Debug)]
pub struct LeaseCandidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease, after [`sanitize_name`].
    pub name: String,
    /// Identity of this process in the Lease. Of two processes with one identity, one leads, and the texts of
    /// the other say so.
    pub identity: String,
    /// Labels that the Lease gets when this process becomes the leader.
    pub labels: BTreeMap<String, String>,
    /// Durations.
    pub durations: LeaseDurations,
}

/// The times of a Lease's spec, by which a process recognizes its own writes: each write has a new
/// `renewTime`, so a Lease with this process's identity and other times has another writer. An edit of other
/// fields does not change the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WrittenTimes {
    acquire_time: Option<String>,
    renew_time: Option<String>,
}

impl WrittenTimes {
    fn of(spec: &LeaseSpec) -> Self {
        Self { acquire_time: spec.acquire_time.clone(), renew_time: spec.renew_time.clone() }
    }
}

/// The writes of this process that the Lease may have.
#[derive(Debug, Default)]
struct OwnWrites {
    /// The last write with a response.
    confirmed: Option<WrittenTimes>,
    /// Later writes without a response, oldest first: each may have taken effect.
    in_doubt: VecDeque<WrittenTimes>,
}

impl OwnWrites {
    /// Call it before the request is sent: the request may be cancelled.
    fn start(&mut self, spec: &LeaseSpec) {
        if self.in_doubt.len() >= MAX_IN_DOUBT {
            self.in_doubt.pop_front();
        }
        self.in_doubt.push_back(WrittenTimes::of(spec));
    }

    /// Call it with the spec of the response. Earlier writes without a response cannot take effect any more:
    /// they require an older resourceVersion.
    fn confirm(&mut self, spec: &LeaseSpec) {
        self.confirmed = Some(WrittenTimes::of(spec));
        self.in_doubt.clear();
    }

    fn is_empty(&self) -> bool {
        self.confirmed.is_none() && self.in_doubt.is_empty()
    }

    fn contain(&self, spec: &LeaseSpec) -> bool {
        let times = WrittenTimes::of(spec);
        self.confirmed.as_ref() == Some(&times) || self.in_doubt.contains(&times)
    }
}

/// A Lease as the API server returned it.
struct ReadLease {
    object: Value,
    spec: LeaseSpec,
}

/// The last change of the Lease that this process observed.
struct Observation {
    spec: LeaseSpec,
    at: Instant,
}

/// The reason why this process stopped leading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLost {
    /// Another process holds the Lease.
    #[error("lease {lease}: {holder:?} holds it now")]
    Taken {
        /// Namespace and name of the Lease.
        lease: String,
        /// Identity of the holder; empty if there is none.
        holder: String,
    },
    /// Another process with the identity of this one has written the Lease, or a person has edited its times.
    #[error(
        "lease {lease}: another process with the identity {identity:?} holds it, or its times were edited; \
         expected an identity for each process"
    )]
    SameIdentity {
        /// Namespace and name of the Lease.
        lease: String,
        /// The identity.
        identity: String,
    },
    /// The Lease could not be renewed in time.
    #[error(
        "lease {lease}: not renewed within the renew deadline, {}: {problem}", DurationText(*.deadline)
    )]
    NotRenewed {
        /// Namespace and name of the Lease.
        lease: String,
        /// The renew deadline.
        deadline: Duration,
        /// The last failure.
        problem: String,
    },
}

/// A Lease that another process renews, in [`LeaderElector::acquire`] of an
/// [only owner](LeaderElector::as_only_owner).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease {lease}: {holder:?} renews it")]
pub struct LeaseInUse {
    /// Namespace and name of the Lease.
    pub lease: String,
    /// Identity of the other process.
    pub holder: String,
}

/// Leadership of this process, for health checks. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LeaderHealth(Arc<Mutex<Option<LeaderTerm>>>);

#[derive(Clone, Copy, Debug)]
struct LeaderTerm {
    renewed_at: Instant,
    lease_duration: Duration,
}

/// A leader that has not renewed its Lease for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed election to renew leadership on lease: it ended {0:?} ago")]
pub struct LeaderUnhealthy(Duration);

impl LeaderHealth {
    /// Checks that this process does not lead, or that its Lease has not ended more than 20 s ago.
    ///
    /// # Errors
    /// [`LeaderUnhealthy`]
    pub fn check(&self) -> Result<(), LeaderUnhealthy> {
        let Some(term) = *self.0.lock() else { return Ok(()) };
        let expired = term.renewed_at.elapsed().saturating_sub(term.lease_duration);
        if expired > HEALTH_TOLERANCE { Err(LeaderUnhealthy(expired)) } else { Ok(()) }
    }
}

/// Acquires and renews one Lease.
pub struct LeaderElector {
    api: ApiClient,
    clock: Clock,
    boot_clock: BootClock,
    metrics: Metrics,
    candidate: LeaseCandidate,
    observation: Option<Observation>,
    is_only_owner: bool,
    /// For an only owner, the holder of an observed renewal by another process.
    renewing_holder: Option<String>,
    own_writes: OwnWrites,
    /// Time in the last write of this process.
    written_at: Option<Timestamp>,
    /// The Lease as `involvedObject` of events; `None` before the first response.
    reference: Option<ObjectReference>,
    /// Number of attempts, which makes their delays differ.
    attempts: u64,
    /// The holder that was logged last.
    reported_holder: Option<String>,
    /// True once a Lease of coordinated leader election was logged.
    has_reported_strategy: bool,
    health: LeaderHealth,
    /// The term since the Lease was acquired; an ended one before.
    term: Term,
}

/// The aim of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// Acquire the Lease, also from a holder that has not renewed it for its duration.
    Acquire,
    /// Renew the Lease. A leader never takes it from another holder: that one may lead already.
    Renew,
}

/// The result of one attempt.
enum Attempt {
    /// This process holds the Lease.
    Held,
    /// Another process holds it.
    HeldByOther(String),
}

impl LeaderElector {
    /// Creates an elector. Sends no request. `api` should have a connection of its own, so that other
    /// requests do not delay renewals.
    pub fn new(api: ApiClient, clock: Clock, metrics: Metrics, candidate: LeaseCandidate) -> Self {
        metrics.set_leader(&candidate.name, false);
        Self {
            api,
            term: Term::until(Duration::ZERO, boot_clock()),
            clock,
            boot_clock: boot_clock(),
            metrics,
            candidate,
            observation: None,
            is_only_owner: false,
            renewing_holder: None,
            own_writes: OwnWrites::default(),
            written_at: None,
            reference: None,
            attempts: 0,
            reported_holder: None,
            has_reported_strategy: false,
            health: LeaderHealth::default(),
        }
    }

    /// Replaces the clock that ends terms, which is that of the machine.
    #[must_use]
    pub fn with_boot_clock(self, boot_clock: BootClock) -> Self {
        Self { boot_clock, ..self }
    }

    /// Does not wait while another process holds the Lease and renews it. For work that has one owner, such
    /// as that with files of this process.
    #[must_use]
    pub fn as_only_owner(self) -> Self {
        Self { is_only_owner: true, ..self }
    }

    /// True after [`LeaderElector::as_only_owner`].
    pub const fn is_only_owner(&self) -> bool {
        self.is_only_owner
    }

    /// The term of the Lease, once [`LeaderElector::acquire`] has returned. Each renewal extends it: it ends
    /// with the renew deadline, counted from the moment before the last renewing request was sent.
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Leadership of this process, for health checks.
    pub fn health(&self) -> LeaderHealth {
        self.health.clone()
    }

    /// Namespace and name of the Lease, for messages.
    pub fn lease(&self) -> String {
        format!("{}/{}", self.candidate.namespace, self.candidate.name)
    }

    /// Attempts to acquire the Lease until it succeeds. Failed requests are logged and retried.
    ///
    /// # Errors
    /// [`LeaseInUse`], for an [only owner](Self::as_only_owner). The Lease of a process that has died is not
    /// in use.
    pub async fn acquire(&mut self) -> Result<(), LeaseInUse> {
        let mut conflicts = 0;
        self.renewing_holder = None;
        loop {
            if let Some(holder) = self.renewing_holder.take() {
                return Err(LeaseInUse { lease: self.lease(), holder });
            }
            let (started, sent_at) = (Instant::now(), (self.boot_clock)());
            let mut retry_period = self.candidate.durations.retry_period;
            match self.attempt(Aim::Acquire, started).await {
                Ok(Attempt::Held) => {
                    let end = sent_at + self.candidate.durations.renew_deadline;
                    self.term = Term::until(end, Arc::clone(&self.boot_clock));
                    self.start_leading(started);
                    return Ok(());
                }
                Ok(Attempt::HeldByOther(holder)) => {
                    self.report_holder(holder);
                    conflicts = 0;
                }
                // Another candidate was faster: the next attempt finds it as the holder.
                Err(ApiError::Conflict(_) | ApiError::AlreadyExists(_)) if conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(lease = self.lease(), %error, "cannot acquire the lease yet");
                    if matches!(error, ApiError::Unavailable { .. }) {
                        retry_period = retry_period.min(FAILURE_RETRY_PERIOD);
                    }
                }
            }
            self.attempts += 1;
            self.wait_for_attempt(retry_period).await;
        }
    }

    /// Waits until the next attempt to acquire the Lease: until the holder releases it, or has not renewed it
    /// for its duration. If no process holds the Lease now, or it cannot be watched, the extended retry
    /// period ends the wait, as in client-go.
    async fn wait_for_attempt(&mut self, retry_period: Duration) {
        let retry_at = Instant::now() + self.jittered(retry_period);
        let is_held_by_other = |held: &Observation| {
            held.spec.holder().is_some()
                && held.at.elapsed() < held.spec.duration()
                && !self.is_held(&held.spec)
        };
        if !self.observation.as_ref().is_some_and(is_held_by_other) {
            return sleep_until(retry_at).await;
        }
        if let Err(error) = self.watch_until_takeable().await {
            tracing::debug!(lease = self.lease(), %error, "cannot watch the lease");
            let expires_at = self.observation.as_ref().map(|held| held.at + held.spec.duration());
            sleep_until(expires_at.map_or(retry_at, |expires_at| expires_at.min(retry_at))).await;
        }
    }

    /// Observes the Lease and never returns. A later [`acquire`](Self::acquire) counts the Lease's duration
    /// from the last renewal that was observed here.
    pub async fn observe_renewals(&mut self) -> Infallible {
        loop {
            let observed = match self.read().await {
                Ok(Some(lease)) => {
                    self.observe(&lease.spec);
                    self.watch_until_takeable().await
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = observed {
                tracing::debug!(lease = self.lease(), %error, "cannot observe the lease");
            }
            sleep(self.candidate.durations.retry_period).await;
        }
    }

    /// Watches the Lease until it has no holder, or until the holder has not renewed it for its duration.
    async fn watch_until_takeable(&mut self) -> Result<(), ApiError> {
        let collection = LEASE.collection_path(Some(&self.candidate.namespace));
        let name = &self.candidate.name;
        let path = format!("{collection}?watch=true&fieldSelector=metadata.name%3D{name}");
        let open = LeaseWatch::open(&self.api, &path, self.target());
        // The API server sends the head of the response with the first event.
        let retry_period = self.candidate.durations.retry_period;
        let no_response =
            |_| ApiError::Unavailable { target: self.target(), message: "no response".to_owned() };
        let mut watch = timeout(retry_period, open).await.map_err(no_response)??;
        let mut is_deleted = false;
        loop {
            let expires_at = match &self.observation {
                None => Instant::now(),
                Some(held) if is_deleted => self.end_of_deleted(held),
                Some(held) => held.at + held.spec.duration(),
            };
            let spec = match timeout_at(expires_at, watch.next()).await {
                Ok(Ok(Some(spec))) => spec,
                // A deletion says nothing about the holder, which creates the Lease again.
                Ok(Ok(None)) => {
                    is_deleted = true;
                    continue;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Ok(()),
            };
            is_deleted = false;
            let is_released = spec.holder().is_none();
            self.observe(&spec);
            if is_released || self.renewing_holder.is_some() {
                return Ok(());
            }
        }
    }

    /// Renews the Lease until it is lost. [`LeaderElector::acquire`] has to have returned before.
    pub async fn renew(&mut self) -> LeaseLost {
        let mut renewed_at = self.health.0.lock().map_or_else(Instant::now, |term| term.renewed_at);
        loop {
            // After a late response the next renewal is due at once.
            self.sleep_awake_until(renewed_at + self.candidate.durations.retry_period).await;
            let deadline = renewed_at + self.candidate.durations.renew_deadline;
            let mut problem = "no attempt: the process or the machine was suspended".to_owned();
            loop {
                let (started, sent_at) = (Instant::now(), (self.boot_clock)());
                // The machine's suspension counts for the term only.
                if started >= deadline || self.term.permit().is_err() {
                    let deadline = self.candidate.durations.renew_deadline;
                    let lost = LeaseLost::NotRenewed { lease: self.lease(), deadline, problem };
                    return self.stop_leading(lost);
                }
                match timeout_at(deadline, self.attempt(Aim::Renew, started)).await {
                    Ok(Ok(Attempt::Held)) => {
                        renewed_at = started;
                        self.term.extend(sent_at + self.candidate.durations.renew_deadline);
                        self.set_renewed(started);
                        break;
                    }
                    Ok(Ok(Attempt::HeldByOther(holder))) => {
                        return self.stop_leading(self.lease_taken(holder));
                    }
                    Ok(Err(error)) => {
                        problem = error.to_string();
                        tracing::warn!(lease = self.lease(), %error, "cannot renew the lease yet");
                    }
                    // The deadline has passed.
                    Err(_) => {
                        "no response".clone_into(&mut problem);
                        continue;
                    }
                }
                // Unlike client-go, whose deadline begins with the first failure: here it began with the last
                // renewal, and less than a retry period may be left.
                let retry_period = self.candidate.durations.retry_period.min(FAILURE_RETRY_PERIOD);
                sleep_until((Instant::now() + retry_period).min(deadline)).await;
            }
        }
    }

    /// Sleeps until this time, at most [`SUSPENSION_CHECK_PERIOD`] after the machine was suspended: timers do
    /// not count its suspension, and the term does.
    async fn sleep_awake_until(&self, until: Instant) {
        let (begin, boot_begin) = (Instant::now(), (self.boot_clock)());
        while Instant::now() < until {
            sleep_until(until.min(Instant::now() + SUSPENSION_CHECK_PERIOD)).await;
            let since_begin = (self.boot_clock)().saturating_sub(boot_begin);
            if since_begin.saturating_sub(begin.elapsed()) >= SUSPENSION_CHECK_PERIOD {
                return;
            }
        }
    }

    fn lease_taken(&self, holder: String) -> LeaseLost {
        let lease = self.lease();
        match holder == self.candidate.identity {
            true => LeaseLost::SameIdentity { lease, identity: holder },
            false => LeaseLost::Taken { lease, holder },
        }
    }

    /// Ends this process's term without a request: another process can take the Lease after its duration.
    pub fn step_down(&self) {
        self.term.end();
        *self.health.0.lock() = None;
        self.metrics.set_leader(&self.candidate.name, false);
    }

    /// Gives the Lease up, so that another process can take it at once. A failed request is logged: the Lease
    /// then ends after its duration. Sends no request if this process has never written the Lease.
    pub async fn release(&mut self) {
        self.step_down();
        if self.own_writes.is_empty() {
            return;
        }
        let released: Result<bool, ApiError> = async {
            let held = self.read().await?.filter(|lease| self.is_held(&lease.spec));
            let Some(lease) = held else { return Ok(false) };
            let now = self.next_time();
            let spec = LeaseSpec {
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(1),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: lease.spec.lease_transitions,
            };
            self.replace(lease.object, &spec, false).await?;
            Ok(true)
        }
        .await;
        match released {
            Ok(false) => {}
            // An event that is not sent in time is lost.
            Ok(true) => drop(timeout(EVENT_TIMEOUT, self.send_event("stopped leading")).await),
            Err(error) => tracing::warn!(lease = self.lease(), %error, "cannot release the lease"),
        }
    }

    /// Records the Lease's spec as the last change, if it differs from the one before.
    fn observe(&mut self, spec: &LeaseSpec) {
        let last = self.observation.as_ref().map(|observation| &observation.spec);
        if last == Some(spec) {
            return;
        }
        // A person may edit another field of a dead process's Lease.
        let is_renewal =
            last.is_some_and(|last| last.holder() == spec.holder() && last.renew_time != spec.renew_time);
        if let Some(holder) =
            spec.holder().filter(|_| is_renewal && self.is_only_owner && !self.is_held(spec))
        {
            self.renewing_holder = Some(holder.to_owned());
        }
        self.observation = Some(Observation { spec: spec.clone(), at: Instant::now() });
    }

    /// Returns true if the Lease has the identity of this process and was written by it. The identity alone
    /// proves nothing: another process may have it.
    fn is_held(&self, spec: &LeaseSpec) -> bool {
        spec.holder() == Some(self.candidate.identity.as_str()) && self.own_writes.contain(spec)
    }

    /// One attempt to acquire or to renew the Lease. Source: client-go's `tryAcquireOrRenew`, which takes a
    /// Lease with its own identity as its own, and as the leader takes an expired Lease of another holder.
    async fn attempt(&mut self, aim: Aim, started: Instant) -> Result<Attempt, ApiError> {
        let Some(lease) = self.read().await? else {
            if let Some(holder) = self.holder_of_deleted().filter(|_| aim == Aim::Acquire) {
                return Ok(Attempt::HeldByOther(holder));
            }
            let now = self.next_time();
            let spec = LeaseSpec {
                holder_identity: Some(self.candidate.identity.clone()),
                lease_duration_seconds: Some(self.lease_seconds()),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: Some(0),
            };
            let created = self.create(&spec).await?;
            self.observation = Some(Observation { spec: created, at: started });
            return Ok(Attempt::Held);
        };
        self.observe(&lease.spec);
        self.report_strategy(&lease.object);
        let is_held = self.is_held(&lease.spec);
        let is_valid = self
            .observation
            .as_ref()
            .is_some_and(|observation| observation.at.elapsed() < observation.spec.duration());
        if let Some(holder) = lease.spec.holder().filter(|_| !is_held && (is_valid || aim == Aim::Renew)) {
            return Ok(Attempt::HeldByOther(holder.to_owned()));
        }
        let now = self.next_time();
        let transitions = lease.spec.lease_transitions.unwrap_or_default();
        let spec = LeaseSpec {
            holder_identity: Some(self.candidate.identity.clone()),
            lease_duration_seconds: Some(self.lease_seconds()),
            acquire_time: if is_held { lease.spec.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if is_held { transitions } else { transitions.saturating_add(1) }),
        };
        let written = self.replace(lease.object, &spec, !is_held).await?;
        self.observation = Some(Observation { spec: written, at: started });
        Ok(Attempt::Held)
    }

    /// The holder of a deleted Lease, while it may create the Lease again: another process that was observed
    /// less than its duration ago.
    fn holder_of_deleted(&self) -> Option<String> {
        let held = self.observation.as_ref()?;
        let may_live = Instant::now() < self.end_of_deleted(held) && !self.is_held(&held.spec);
        held.spec.holder().filter(|_| may_live).map(str::to_owned)
    }

    /// Time until which the holder of a deleted Lease creates it again, if it lives. A person may delete a
    /// Lease because a stranger holds it for long.
    fn end_of_deleted(&self, held: &Observation) -> Instant {
        held.at + held.spec.duration().min(self.candidate.durations.lease_duration)
    }

    async fn read(&mut self) -> Result<Option<ReadLease>, ApiError> {
        let target = self.target();
        match self.api.read(&self.path(), &target).await {
            Ok(response) => self.decode(&response).map(Some),
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&mut self, spec: &LeaseSpec) -> Result<LeaseSpec, ApiError> {
        let object = json!({
            "apiVersion": LEASE.api_version(),
            "kind": LEASE.kind,
            "metadata": {
                "namespace": self.candidate.namespace,
                "name": self.candidate.name,
                "labels": self.candidate.labels,
            },
            "spec": spec,
        });
        let path = LEASE.collection_path(Some(&self.candidate.namespace));
        let target = self.target();
        self.own_writes.start(spec);
        let response = self.api.send_json(Method::POST, &path, "application/json", &object, &target).await?;
        let written = self.decode(&response)?.spec;
        self.own_writes.confirm(&written);
        Ok(written)
    }

    /// Replaces the Lease's spec and, with `labels`, sets the candidate's labels. The request requires the
    /// resourceVersion of `object`.
    async fn replace(
        &mut self,
        mut object: Value,
        spec: &LeaseSpec,
        labels: bool,
    ) -> Result<LeaseSpec, ApiError> {
        if let (Some(old), Value::Object(new)) = (object.get_mut("spec"), json!(spec)) {
            match old.as_object_mut() {
                Some(old) => old.extend(new),
                None => *old = Value::Object(new),
            }
        } else if let Some(object) = object.as_object_mut() {
            object.insert("spec".to_owned(), json!(spec));
        }
        if labels
            && !self.candidate.labels.is_empty()
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
            && let Some(existing) = metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut()
        {
            existing.extend(self.candidate.labels.iter().map(|(key, value)| (key.clone(), json!(value))));
        }
        let target = self.target();
        let path = self.path();
        self.own_writes.start(spec);
        let response = self.api.send_json(Method::PUT, &path, "application/json", &object, &target).await?;
        let written = self.decode(&response)?.spec;
        self.own_writes.confirm(&written);
        Ok(written)
    }

    fn start_leading(&mut self, started: Instant) {
        self.reported_holder = None;
        self.set_renewed(started);
        self.metrics.set_leader(&self.candidate.name, true);
        tracing::info!(lease = self.lease(), identity = self.candidate.identity, "became the leader");
        tokio::spawn(self.send_event("became leader"));
    }

    fn stop_leading(&self, lost: LeaseLost) -> LeaseLost {
        self.step_down();
        lost
    }

    fn set_renewed(&self, renewed_at: Instant) {
        let lease_duration = self.candidate.durations.lease_duration;
        *self.health.0.lock() = Some(LeaderTerm { renewed_at, lease_duration });
    }

    fn report_holder(&mut self, holder: String) {
        if self.reported_holder.as_ref() != Some(&holder) {
            let text = match holder == self.candidate.identity {
                true => "waiting for the lease: its holder is another process with the identity of this one",
                false => "waiting for the lease",
            };
            tracing::info!(lease = self.lease(), holder, "{text}");
            self.reported_holder = Some(holder);
        }
    }

    /// Logs once that the Lease asks for coordinated leader election (Kubernetes 1.31, KEP-4355), in which
    /// the API server chooses among LeaseCandidates. This process ignores both fields, and keeps them.
    fn report_strategy(&mut self, object: &Value) {
        let text = |name: &str| object.pointer(&format!("/spec/{name}")).and_then(Value::as_str);
        let (strategy, preferred_holder) = (text("strategy"), text("preferredHolder"));
        if self.has_reported_strategy || (strategy, preferred_holder) == (None, None) {
            return;
        }
        self.has_reported_strategy = true;
        tracing::warn!(
            lease = self.lease(),
            strategy,
            preferred_holder,
            "the lease asks for coordinated leader election: this process takes no part in it, and ignores both"
        );
    }

    /// Sends an event about this process on the Lease.
    fn send_event(&self, text: &str) -> impl Future<Output = ()> + Send + 'static {
        let event = self.reference.clone().map(|involved_object| Event {
            involved_object,
            event_type: EventType::Normal,
            reason: EVENT_REASON,
            note: format!("{} {text}", self.candidate.identity),
            component: format!("{}/{}", self.candidate.name, self.candidate.identity).into(),
        });
        let (api, metrics, now) = (self.api.clone(), self.metrics.clone(), (self.clock)());
        async move {
            if let Some(event) = event {
                events::send_once(&api, &metrics, &event, now).await;
            }
        }
    }

    fn decode(&mut self, response: &str) -> Result<ReadLease, ApiError> {
        let invalid = |error: serde_json::Error| ApiError::invalid_response(&self.target(), error);
        let object: Value = serde_json::from_str(response).map_err(invalid)?;
        let spec = object.get("spec").cloned().unwrap_or_else(|| json!({}));
        let spec = serde_json::from_value(spec).map_err(invalid)?;
        let member = |name: &str| object.pointer(&format!("/metadata/{name}")).and_then(Value::as_str);
        self.reference = member("resourceVersion").and_then(|version| version.parse().ok()).map(|version| {
            ObjectReference {
                resource: LEASE,
                namespace: self.candidate.namespace.as_str().into(),
                name: self.candidate.name.as_str().into(),
                uid: member("uid").unwrap_or_default().into(),
                resource_version: version,
            }
        });
        Ok(ReadLease { object, spec })
    }

    /// A period that is extended by up to 120 %, so that processes do not compete at the same times.
    /// The extension depends on the identity and on the number of attempts.
    fn jittered(&self, period: Duration) -> Duration {
        let mut hasher = FnvHasher::default();
        hasher.write(self.candidate.identity.as_bytes());
        hasher.write_u64(self.attempts);
        let [fraction, ..] = hasher.finish().to_le_bytes();
        let extension = JITTER_FACTOR * f64::from(fraction) / f64::from(u8::MAX);
        period.mul_f64(1.0 + extension)
    }

    fn lease_seconds(&self) -> i64 {
        self.candidate.durations.lease_seconds()
    }

    /// The time of a write: that of the clock, or later if the clock has not moved on since the last write. A
    /// write with the same content would be none: the standbys would not see it.
    fn next_time(&mut self) -> String {
        let now = (self.clock)();
        let has_stood_still = |last: &Timestamp| {
            let back = last.duration_since(now);
            !back.is_negative() && back < MAX_STANDSTILL
        };
        let after = |last: Timestamp| last.checked_add(MICROSECOND).unwrap_or(now);
        let next = self.written_at.filter(has_stood_still).map_or(now, after);
        self.written_at = Some(next);
        next.strftime(MICRO_TIME).to_string()
    }

    fn path(&self) -> String {
        format!("{}/{}", LEASE.collection_path(Some(&self.candidate.namespace)), self.candidate.name)
    }

    fn target(&self) -> String {
        format!("Lease {}", self.lease())
    }
}
