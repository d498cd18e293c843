//! What is going on, for a person at a terminal; in a pipe only the results are printed.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A line that shows what is going on and is gone afterwards.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Begins with `message`. Draws nothing where standard error is not a terminal.
    pub fn new(message: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(120));
        let progress = Progress { bar };
        progress.report(message, None);
        progress
    }

    /// Shows another message, with a bar where the amount is known.
    pub fn report(&self, message: &str, bytes: Option<(u64, u64)>) {
        let template = match bytes {
            Some(_) => "{spinner} {msg} {bar:30} {bytes} of {total_bytes}",
            None => "{spinner} {msg} {elapsed}",
        };
        self.bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
        if let Some((done, total)) = bytes {
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
        self.bar.set_message(message.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
