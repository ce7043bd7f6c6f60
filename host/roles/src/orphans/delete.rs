//! One request, one volume: everything is read anew, then the driver is called, then the answer is written.

use cofferdam_backend::Call;
use cofferdam_cluster::{EventType, OrphanReport, WriteError, hold, queue::Outcome, watch::Scope};
use cofferdam_domain::{
    Volume, VolumeHandle,
    storage::{Ability, ErrorKind, Finality, Owner, VolumeStatus},
};
use serde_json::{Value, json};

use super::{
    listing::{Pages, Sights},
    report::{ANSWER, Answer, DELETE, REPORT, Report, Request, Verdict},
    rules::{self, Decision, Live},
    scan::{Desk, Orphans},
};
use crate::act::Driver;

/// Why a volume could not be looked at; asked again later.
#[derive(Debug, thiserror::Error)]
enum Unseen {
    #[error("the driver's volumes cannot be listed: {0}")]
    Listing(String),
    #[error(transparent)]
    Read(#[from] WriteError),
}

impl Orphans {
    /// The next effect for a request: the driver call, or the answer. `Err` ends this run.
    pub(super) async fn answer(
        &self,
        driver: &Driver,
        standing: &OrphanReport,
        text: &str,
        last: Option<Report>,
        desk: &mut Desk,
    ) -> Result<Result<(), WriteError>, Outcome> {
        let request = Request::parse(text);
        // An answer to a request that was taken back meanwhile has nobody to read it.
        let kept = desk.answer.take().filter(|answer| answer.request.as_ref() == request.as_ref().ok());
        let answer = match (kept, request) {
            (Some(answer), _) => answer,
            (None, Err(message)) => self.refusal(None, message),
            (None, Ok(request)) => match self.carry_out(driver, request, &mut desk.sights).await {
                Some(answer) => answer,
                None => return Err(Outcome::Retry),
            },
        };
        let written = self.reply(driver, standing, last, &answer).await;
        if written.is_err() {
            // What the driver has said once is not asked for again.
            desk.answer = Some(answer);
        }
        Ok(written)
    }

    /// Decides and acts on a request; absent when that has to be tried again.
    async fn carry_out(&self, driver: &Driver, request: Request, sights: &mut Sights) -> Option<Answer> {
        let name = &driver.backend.description().name;
        let handle = request.handle.clone();
        let decision = match self.decide(driver, &request, sights).await {
            Ok(decision) => decision,
            Err(error) => {
                tracing::warn!(driver = %name, volume = %handle, %error, "a deletion waits");
                return None;
            }
        };
        match decision {
            Decision::Refuse(why) => Some(self.refusal(Some(request), why)),
            Decision::Gone => {
                Some(self.verdict(Some(request), Verdict::Deleted, "the driver lists it no more".to_owned()))
            }
            Decision::Delete => self.call(driver, request).await,
        }
    }

    /// The effect that cannot be taken back.
    async fn call(&self, driver: &Driver, request: Request) -> Option<Answer> {
        let name = &driver.backend.description().name;
        tracing::info!(driver = %name, volume = %request.handle, by = %request.by, "deleting an orphan");
        let call = Call::within(self.context.settings.timeout);
        match driver.backend.delete_volume(call, request.handle.clone()).await {
            Ok(()) => Some(self.verdict(Some(request), Verdict::Deleted, "deleted".to_owned())),
            Err(error) if error.finality != Finality::Final => {
                tracing::warn!(driver = %name, volume = %request.handle, %error, "deleting an orphan is tried again");
                None
            }
            Err(error) if error.kind == ErrorKind::NotFound => {
                Some(self.verdict(Some(request), Verdict::Deleted, "the driver knows it no more".to_owned()))
            }
            Err(error) => Some(self.refusal(Some(request), format!("the driver refuses: {error}"))),
        }
    }

    /// Looks at everything that a deletion rests on, the cluster last: it is what may change while the driver lists.
    async fn decide(
        &self,
        driver: &Driver,
        request: &Request,
        sights: &mut Sights,
    ) -> Result<Decision, Unseen> {
        let settings = &self.context.settings;
        if !driver.backend.abilities().contains(&Ability::Listing) {
            return Ok(Decision::Refuse(format!("the driver has no `{}`", Ability::Listing)));
        }
        let held = hold::is_held(&self.context.cache);
        if let Some(why) = rules::refuse_at_once(request, held, self.now()) {
            return Ok(Decision::Refuse(why));
        }
        let Some(status) = self.find(driver, &request.handle).await.map_err(Unseen::Listing)? else {
            return Ok(Decision::Gone);
        };
        let writer = &self.context.writer;
        let volumes = writer.list_in::<Volume>(&Scope::default()).await?;
        let unreadable = volumes.into_iter().find_map(|volume| volume.err().map(|opaque| opaque.key));
        let recorded = match &status.owner {
            Some(owner) => driver.journal.mentions_now(&owner.claim, &owner.volume).await?,
            None => false,
        };
        let held = hold::is_held_now(writer, &settings.namespace).await?;
        if let Some(why) = rules::refuse_at_once(request, held, self.now()) {
            return Ok(Decision::Refuse(why));
        }
        let intent = |owner: &Owner| recorded || driver.journal.mentions(&owner.claim, &owner.volume);
        let name = &driver.backend.description().name;
        let verdict = self.judge(name, &status, &intent, sights, self.now());
        Ok(rules::decide(&Live { volume: Some((&status, verdict)), unreadable }))
    }

    async fn find(&self, driver: &Driver, handle: &VolumeHandle) -> Result<Option<VolumeStatus>, String> {
        let mut pages = Pages::new(&*driver.backend, self.context.settings.timeout);
        while let Some(page) = pages.next().await? {
            if let Some(found) = page.into_iter().find(|status| status.volume.handle == *handle) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Writes an answer in the place of its request.
    async fn reply(
        &self,
        driver: &Driver,
        standing: &OrphanReport,
        last: Option<Report>,
        answer: &Answer,
    ) -> Result<(), WriteError> {
        let name = &driver.backend.description().name;
        let deleted = answer.request.as_ref().filter(|_| answer.verdict == Verdict::Deleted);
        let mut data = json!({DELETE: Value::Null, ANSWER: json!(answer).to_string()});
        let report = last.zip(deleted).map(|(mut report, request)| {
            report.remove(&request.handle);
            report
        });
        if let (Some(report), Some(data)) = (&report, data.as_object_mut()) {
            data.insert(REPORT.to_owned(), json!(json!(report).to_string()));
        }
        let map = self.write(name, Some(standing), data).await?;
        if let Some(report) = &report {
            self.metrics.show(report);
        }
        if let Some(Request { handle, by, .. }) = deleted {
            let text = format!("Volume {handle}, an orphan, is gone as {by} asked: {}", answer.message);
            self.note(driver, &map, EventType::Normal, "OrphanDeleted", text).await;
        }
        Ok(())
    }

    fn refusal(&self, request: Option<Request>, message: String) -> Answer {
        self.verdict(request, Verdict::Refused, message)
    }

    fn verdict(&self, request: Option<Request>, verdict: Verdict, message: String) -> Answer {
        Answer { request, verdict, message, answered_at: self.now() }
    }
}
