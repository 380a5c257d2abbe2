//! Opens pages in headless Chromium, on narrow and wide screens, on paper, light and dark, with scripts and without,
//! and reports faults. Tests of other crates take it by `#[path]`.
//!
//! One process for all pages of a test, driven by the Chrome DevTools Protocol over two pipes
//! (`--remote-debugging-pipe`: messages of JSON that end with a zero byte). Not supported: other browsers.

mod pipe;

use std::path::Path;

use pipe::Pipe;
use serde_json::{Value, json};

/// Script that looks for faults in a page.
const LOOK: &str = include_str!("look.js");
/// Script that looks for faults with keys and pointer.
const USE: &str = include_str!("use.js");

/// Chromium with one tab.
pub struct Browser {
    pipe: Pipe,
}

/// Findings on a page.
#[derive(Debug, Default)]
pub struct Visit {
    /// Plots that can be seen, the least number of all views.
    pub plots: usize,
    /// Faults, each with the view that has it.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts Chromium. `None`, and SKIP on standard output, if it is not installed.
    pub fn start() -> Option<Self> {
        match Pipe::start() {
            Ok(mut pipe) => {
                for domain in ["Page", "Runtime", "Log", "Network"] {
                    pipe.call(&format!("{domain}.enable"), json!({}));
                }
                Some(Self { pipe })
            }
            Err(why) => {
                println!("SKIP {why}");
                None
            }
        }
    }

    /// Opens the file at `path` and looks at it in each view.
    pub fn visit(&mut self, path: &Path) -> Visit {
        let mut visit = Visit { plots: usize::MAX, complaints: Vec::new() };
        for (script, without) in [("with scripts", false), ("without scripts", true)] {
            let disabled = json!({ "value": without });
            self.pipe.call("Emulation.setScriptExecutionDisabled", disabled);
            self.view(360, "light", "screen");
            self.open(path);
            for (width, theme, media) in [
                (360, "light", "screen"),
                (360, "dark", "screen"),
                (1400, "light", "screen"),
                (1400, "dark", "screen"),
                (720, "light", "print"),
            ] {
                self.view(width, theme, media);
                let found = self.evaluate(LOOK);
                let plots = found["plots"].as_u64().unwrap_or(0) as usize;
                visit.plots = visit.plots.min(plots);
                let view = format!("{width} pixels, {theme}, {media}, {script}");
                visit.take(&view, &found["complaints"]);
                if media == "screen" && !without && theme == "light" {
                    let used = self.evaluate(USE);
                    visit.take(&view, &used);
                }
            }
            let events = self.pipe.events();
            let wrong = events.iter().filter_map(|event| wrong(event, path));
            visit.complaints.extend(wrong.map(|what| format!("{script}: {what}")));
        }
        visit
    }

    fn open(&mut self, path: &Path) {
        let path = path.canonicalize().expect("the page is there");
        let url = json!({ "url": format!("file://{}", path.display()) });
        self.pipe.call("Page.navigate", url);
        self.pipe.until("Page.loadEventFired");
    }

    fn view(&mut self, width: u32, theme: &str, media: &str) {
        let size =
            json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.pipe.call("Emulation.setDeviceMetricsOverride", size);
        let theme = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        let media = json!({ "media": media, "features": theme });
        self.pipe.call("Emulation.setEmulatedMedia", media);
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.pipe.call("Runtime.evaluate", asked);
        assert!(answer.get("exceptionDetails").is_none(), "{answer}");
        answer["result"]["value"].clone()
    }
}

impl Visit {
    fn take(&mut self, view: &str, complaints: &Value) {
        let texts =
            complaints.as_array().expect("a list of complaints").iter().filter_map(Value::as_str);
        self.complaints.extend(texts.map(|what| format!("{view}: {what}")));
    }
}

/// Fault of a page that causes `event`, if it is one.
fn wrong(event: &Value, page: &Path) -> Option<String> {
    let parameters = &event["params"];
    match event["method"].as_str()? {
        "Runtime.consoleAPICalled" => Some(format!("console: {}", parameters["args"])),
        "Runtime.exceptionThrown" => Some(format!("exception: {}", parameters["exceptionDetails"])),
        "Log.entryAdded" => Some(format!("log: {}", parameters["entry"]["text"])),
        "Network.requestWillBeSent" => {
            let url = parameters["request"]["url"].as_str().unwrap_or("");
            let own = page.file_name().and_then(|name| name.to_str()).unwrap_or("");
            let first = parameters["type"] == "Document" && url.ends_with(own);
            (!first).then(|| format!("request: {url}"))
        }
        _ => None,
    }
}
