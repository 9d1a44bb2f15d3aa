# shellcheck shell=bash
# NATS with JetStream, built from the Go module (Debian's is too old).

NATS_VERSION=v2.15.3

nats_ports() {
	port ONCEMILL_TEST_NATS_PORT 14222
	port ONCEMILL_TEST_NATS_MONITOR_PORT 14223
}

nats_install() {
	local bin="$DOWNLOADS/nats-$NATS_VERSION"
	[[ ! -x $bin/nats-server ]] || return 0
	command -v go >/dev/null || fail "go is needed to build nats-server"
	GOBIN="$bin" GOFLAGS='' go install "github.com/nats-io/nats-server/v2@$NATS_VERSION" ||
		fail "go install nats-server failed (log: $LOG_DIR/$SERVICE.up.log)"
}

nats_start() {
	local data="$DATA_DIR/nats"
	need_ports "$ONCEMILL_TEST_NATS_PORT" "$ONCEMILL_TEST_NATS_MONITOR_PORT"
	mkdir -p "$data"
	cat >"$data/nats.conf" <<-CONF
		server_name: oncemill
		listen: "127.0.0.1:$ONCEMILL_TEST_NATS_PORT"
		http: "127.0.0.1:$ONCEMILL_TEST_NATS_MONITOR_PORT"
		# A payload of 1 MiB and its headers do not fit into the default of 1 MiB.
		max_payload: 2MB
		jetstream {
			store_dir: "$data"
			max_memory_store: 256MB
			max_file_store: 8GB
		}
	CONF
	launch nats "$DOWNLOADS/nats-$NATS_VERSION/nats-server" -c "$data/nats.conf"
	await nats 30 http_ok "$ONCEMILL_TEST_NATS_MONITOR_PORT" /healthz
}

nats_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end nats KILL 20 KILL
	else
		end nats TERM 20 KILL
	fi
}

nats_address() { echo "127.0.0.1:$ONCEMILL_TEST_NATS_PORT"; }

nats_env() { echo "export ONCEMILL_TEST_NATS='nats://127.0.0.1:$ONCEMILL_TEST_NATS_PORT'"; }
