//! Orders of a form about a sink or one of its dead letters.

use super::super::shown::{Shown, see_other};
use super::super::visit::Visit;
use super::super::write::form_data::FormData;
use super::path_of;
use crate::config::TokenRight;
use crate::document::route_error::RouteError;
use crate::engine::access::may_change;
use crate::engine::sinks::SinkEntry;
use crate::sink::letters;
use crate::sink::orders::{self, Order};

/// Gives the order of a form.
pub(in crate::server::console) async fn order(
    visit: &Visit,
    name: &str,
    form: &FormData,
) -> Result<Shown, RouteError> {
    let sender = may_change(&visit.engine.tokens.load(), TokenRight::Admin, "", visit.peer, &visit.request)?;
    let sink = visit.engine.sinks.get(name).ok_or_else(|| RouteError::not_found("There is no such sink"))?;
    let action = form.text("action");
    let target = match action {
        "pause" | "resume" | "resend" => {
            let order = match action {
                "pause" => Order::Pause,
                "resume" => Order::Resume,
                _ => Order::Resend,
            };
            orders::place(&visit.engine, &sink, order).await?;
            format!("{}/sinks", visit.root)
        }
        "resend-letter" | "drop-letter" => {
            let done = of_letter(visit, &sink, form).await?;
            format!("{}?done={done}", path_of(visit, name))
        }
        _ => {
            let why = "A sink can be paused, resumed, or made to resend; a dead letter can be sent again or dropped";
            return Err(RouteError::bad_request(why).about("action"));
        }
    };
    tracing::info!(sink = name, token = %sender, action, letter = form.text("letter"), "an order for a sink");
    Ok(see_other(&target).into())
}

/// Sends one letter again, or drops it. Returns what was done, for the page.
async fn of_letter(visit: &Visit, sink: &SinkEntry, form: &FormData) -> Result<&'static str, RouteError> {
    let number = form.text("letter").parse();
    let number = number.map_err(|_| RouteError::bad_request("letter is not a number").about("letter"))?;
    let resends = form.text("action") == "resend-letter";
    let is_there = match resends {
        true => letters::order_letter(&visit.engine, sink, number).await?,
        false => letters::drop_letter(&visit.engine, sink, number).await?,
    };
    Ok(match (is_there, resends) {
        (false, _) => "gone",
        (true, true) => "resend",
        (true, false) => "drop",
    })
}
