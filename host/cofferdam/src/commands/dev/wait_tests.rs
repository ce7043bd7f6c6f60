use cofferdam_apiserver::{ApiServer, Options};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Client,
    api::{DeleteParams, PostParams},
};

use super::*;

fn api() -> Api<StorageClass> {
    Api::all(Client::new(ApiServer::new(Options::default()).service(), "default"))
}

fn class(name: &str) -> StorageClass {
    let mut class = StorageClass { provisioner: "a.example.com".to_owned(), ..StorageClass::default() };
    class.metadata.name = Some(name.to_owned());
    class
}

fn state(class: Option<&StorageClass>) -> String {
    if class.is_some() { "there".to_owned() } else { "absent".to_owned() }
}

fn exists(class: Option<&StorageClass>) -> bool {
    class.is_some()
}

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn what_does_not_come_is_named_with_what_is_there_instead() {
    let wish = Wish { expected: "there", holds: &exists, state: &state, limit: LIMIT };
    let overdue = until(&api(), "fast", &wish).await.unwrap_err();
    assert_eq!(overdue.to_string(), "StorageClass fast is absent after 30s: expected it to be there");
}

#[tokio::test(start_paused = true)]
async fn the_watch_shows_what_comes_and_goes() {
    let api = api();
    let wish = Wish { expected: "there", holds: &exists, state: &state, limit: LIMIT };
    let (found, created) = tokio::join!(until(&api, "fast", &wish), async {
        api.create(&PostParams::default(), &class("slow")).await.unwrap();
        api.create(&PostParams::default(), &class("fast")).await.unwrap()
    });
    assert_eq!(found.unwrap().unwrap().metadata.uid, created.metadata.uid);

    let background = DeleteParams::background();
    let is_gone = |class: Option<&StorageClass>| class.is_none();
    let wish = Wish { expected: "gone", holds: &is_gone, state: &state, limit: LIMIT };
    let (gone, deleted) = tokio::join!(until(&api, "fast", &wish), api.delete("fast", &background));
    deleted.unwrap();
    assert_eq!(gone.unwrap(), None);
}
