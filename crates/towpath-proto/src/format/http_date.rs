//! Dates as HTTP headers have them (RFC 9110, section 5.6.7).
