# shellcheck shell=bash
# The SMTP sink of internal/testenv: takes every letter, shows it over HTTP.

smtp_ports() {
	port ONCEMILL_TEST_SMTP_PORT 12525
	port ONCEMILL_TEST_SMTP_API_PORT 12526
}

smtp_install() {
	command -v go >/dev/null || fail "go is needed to build the SMTP sink"
	(cd "$HERE/.." && go build -buildvcs=false -o "$DOWNLOADS/smtpsink" ./internal/testenv/cmd/smtpsink) ||
		fail "go build failed (log: $LOG_DIR/$SERVICE.up.log)"
}

smtp_start() {
	need_ports "$ONCEMILL_TEST_SMTP_PORT" "$ONCEMILL_TEST_SMTP_API_PORT"
	launch smtp "$DOWNLOADS/smtpsink" -smtp "127.0.0.1:$ONCEMILL_TEST_SMTP_PORT" -http "127.0.0.1:$ONCEMILL_TEST_SMTP_API_PORT"
	await smtp 15 http_ok "$ONCEMILL_TEST_SMTP_API_PORT" /healthz
}

smtp_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end smtp KILL 10 KILL
	else
		end smtp TERM 10 KILL
	fi
}

smtp_address() { echo "127.0.0.1:$ONCEMILL_TEST_SMTP_PORT, API $ONCEMILL_TEST_SMTP_API_PORT"; }

smtp_env() {
	echo "export ONCEMILL_TEST_SMTP='127.0.0.1:$ONCEMILL_TEST_SMTP_PORT'"
	echo "export ONCEMILL_TEST_SMTP_API='http://127.0.0.1:$ONCEMILL_TEST_SMTP_API_PORT'"
}
