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
    report::{ANSWER, Answer, DELETE, DELETING, REPORT, Report, Request, Verdict},
    rules::{self, Decision, Live},
    scan::{Desk, Orphans, judge},
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

/// What comes of one look at a request.
enum Step {
    /// It is decided.
    Answer(Answer),
    /// Its beginning was written down, or was not.
    Begun(Result<(), WriteError>),
    /// It has to be tried again.
    Later,
}

impl Orphans {
    /// The next effect for a request: its beginning, the driver call, or the answer. `Err` ends this run.
    pub(super) async fn answer(
        &self,
        driver: &Driver,
        standing: &OrphanReport,
        last: Option<Report>,
        desk: &mut Desk,
    ) -> Result<Result<(), WriteError>, Outcome> {
        let begun = standing.text(DELETING);
        let Some(text) = begun.or(standing.text(DELETE)) else { return Ok(Ok(())) };
        let request = Request::parse(text);
        // An answer to a request that was taken back meanwhile has nobody to read it.
        let kept = desk.answer.take().filter(|answer| answer.request.as_ref() == request.as_ref().ok());
        let answer = match (kept, request) {
            (Some(answer), _) => answer,
            (None, Err(message)) => self.refusal(None, message),
            (None, Ok(request)) => {
                match self.carry_out(driver, standing, request, begun.is_some(), &mut desk.sights).await {
                    Step::Answer(answer) => answer,
                    Step::Begun(written) => return Ok(written),
                    Step::Later => return Err(Outcome::Retry),
                }
            }
        };
        let written = self.reply(driver, standing, text, last, &answer).await;
        if written.is_err() {
            // What the driver has said once is not asked for again.
            desk.answer = Some(answer);
        }
        Ok(written)
    }

    /// Decides and acts on a request.
    async fn carry_out(
        &self,
        driver: &Driver,
        standing: &OrphanReport,
        request: Request,
        begun: bool,
        sights: &mut Sights,
    ) -> Step {
        let name = &driver.backend.description().name;
        let decision = match self.decide(driver, &request, begun, sights).await {
            Ok(decision) => decision,
            Err(error) => {
                tracing::warn!(driver = %name, volume = %request.handle, %error, "a deletion waits");
                return Step::Later;
            }
        };
        match decision {
            Decision::Refuse(why) => Step::Answer(self.refusal(Some(request), why)),
            Decision::Gone => {
                let message = "the driver lists it no more".to_owned();
                Step::Answer(self.verdict(Some(request), Verdict::Deleted, message))
            }
            Decision::Delete if begun => self.call(driver, request).await.map_or(Step::Later, Step::Answer),
            // After it everything is looked at once more: the API took this write, so the process is not cut off from it.
            Decision::Delete => {
                let data = json!({DELETING: json!(request).to_string()});
                Step::Begun(self.write(name, Some(standing), data).await.map(drop))
            }
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
        begun: bool,
        sights: &mut Sights,
    ) -> Result<Decision, Unseen> {
        let (settings, writer) = (&self.context.settings, &self.context.writer);
        if !driver.backend.abilities().contains(&Ability::Listing) {
            return Ok(Decision::Refuse(format!("the driver has no `{}`", Ability::Listing)));
        }
        let locked = || Decision::Refuse(rules::locked(&settings.namespace));
        if hold::is_held(&self.context.cache) {
            return Ok(locked());
        }
        if let Some(why) = rules::expired(request, self.now()).filter(|_| !begun) {
            return Ok(Decision::Refuse(why));
        }
        let Some(status) = self.find(driver, &request.handle).await.map_err(Unseen::Listing)? else {
            return Ok(rules::decide(&Live { volume: None, unreadable: None, begun }));
        };
        let volumes = writer.list_in::<Volume>(&Scope::default()).await?;
        let unreadable = volumes.into_iter().find_map(|volume| volume.err().map(|opaque| opaque.key));
        let recorded = match &status.owner {
            Some(owner) => driver.journal.mentions_now(&owner.claim, &owner.volume).await?,
            None => false,
        };
        self.context.look().await?;
        if hold::is_held_now(writer, &settings.namespace).await? || hold::is_held(&self.context.cache) {
            return Ok(locked());
        }
        let intent = |owner: &Owner| recorded || driver.journal.mentions(&owner.claim, &owner.volume);
        let view = self.view(&driver.backend.description().name, &intent, None, self.now());
        let verdict = judge(&view, &status, sights);
        Ok(rules::decide(&Live { volume: Some((&status, verdict)), unreadable, begun }))
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

    /// Writes an answer in the place of its request, whose text this is.
    async fn reply(
        &self,
        driver: &Driver,
        standing: &OrphanReport,
        text: &str,
        last: Option<Report>,
        answer: &Answer,
    ) -> Result<(), WriteError> {
        let name = &driver.backend.description().name;
        let deleted = answer.request.as_ref().filter(|_| answer.verdict == Verdict::Deleted);
        let mut data = json!({DELETING: Value::Null, ANSWER: json!(answer).to_string()});
        if let Some(data) = data.as_object_mut().filter(|_| standing.text(DELETE) == Some(text)) {
            data.insert(DELETE.to_owned(), Value::Null);
        }
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
            self.note(driver, &map, EventType::Normal, "OrphanDeleted", text);
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
