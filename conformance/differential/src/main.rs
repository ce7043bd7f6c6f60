//! `differential record DIRECTORY` plays the set to the API of the kubeconfig and writes its answers;
//! `differential compare DIRECTORY` plays it and compares it with answers that were written before.

#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cofferdam_differential::{compare, play, requests};

#[expect(clippy::print_stdout, reason = "the differences are what this is for")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, directory] = arguments.as_slice() else {
        bail!("usage: differential record|compare DIRECTORY (KUBECONFIG names the API)");
    };
    let client = kube::Client::try_default().await.context("no API: set KUBECONFIG")?;
    let mut differences = 0;
    for (name, text) in requests::FILES {
        let script = requests::parse(text)?;
        let answers = play::play(&client, &script).await.with_context(|| format!("{name}.txt"))?;
        let path = Path::new(directory).join(format!("{name}.jsonl"));
        if command == "record" {
            let lines: Result<Vec<String>, _> = answers.iter().map(serde_json::to_string).collect();
            std::fs::write(&path, lines?.join("\n") + "\n").with_context(|| path.display().to_string())?;
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let expected: Result<Vec<play::Answer>, _> = text.lines().map(serde_json::from_str).collect();
        let verdict = compare::compare(&script, &expected?, &answers);
        for difference in &verdict.differences {
            println!("{name}.txt {difference}");
        }
        differences += verdict.differences.len();
    }
    if differences > 0 {
        bail!("{differences} differences");
    }
    Ok(())
}
