//! What the library says by `tracing`, for tests.

use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// What the library says on this thread during `work`: one line an event, its level first. Details of each call
/// (level debug) are left out.
pub(crate) fn listen(work: impl FnOnce()) -> Vec<String> {
    listen_to(Level::INFO, work)
}

/// As [`listen`], down to `level`.
pub(crate) fn listen_to(level: Level, work: impl FnOnce()) -> Vec<String> {
    let said = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Listener { level, said: said.clone() }, work);
    std::mem::take(&mut *said.lock().unwrap())
}

struct Listener {
    level: Level,
    said: Arc<Mutex<Vec<String>>>,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.said.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
