# shellcheck shell=bash
# RabbitMQ from Debian, as a node of its own (om@localhost) with an epmd of its
# own. The packaged service is neither started nor stopped.

rabbitmq_ports() {
	port ONCEMILL_TEST_RABBITMQ_PORT 16672
	port ONCEMILL_TEST_RABBITMQ_API_PORT 16673
	port ONCEMILL_TEST_RABBITMQ_DIST_PORT 16674
	port ONCEMILL_TEST_RABBITMQ_EPMD_PORT 16675
	port ONCEMILL_TEST_RABBITMQ_TLS_PORT 16676
}

rabbitmq_install() { need_packages /usr/lib/rabbitmq/bin/rabbitmq-server rabbitmq-server; }

rabbitmq_start() {
	local data="$DATA_DIR/rabbitmq"
	need_ports "$ONCEMILL_TEST_RABBITMQ_PORT" "$ONCEMILL_TEST_RABBITMQ_API_PORT" "$ONCEMILL_TEST_RABBITMQ_DIST_PORT"
	mkdir -p "$data/home" "$data/mnesia" "$LOG_DIR/rabbitmq"
	echo '[rabbitmq_management].' >"$data/enabled_plugins"
	: >"$data/env.conf" # instead of /etc/rabbitmq/rabbitmq-env.conf
	cat >"$data/rabbitmq.conf" <<-CONF
		listeners.tcp.1 = 127.0.0.1:$ONCEMILL_TEST_RABBITMQ_PORT
		management.tcp.ip = 127.0.0.1
		management.tcp.port = $ONCEMILL_TEST_RABBITMQ_API_PORT
		# Tests read queue counts through the API: by default they are five seconds old.
		collect_statistics_interval = 1000
		management.sample_retention_policies.global.minute = 1
		management.sample_retention_policies.basic.minute = 1
		management.sample_retention_policies.detailed.minute = 1
		log.console = false
		log.file.level = info
	CONF
	[[ -z ${ONCEMILL_TEST_TLS_DIR:-} ]] || rabbitmq_tls >>"$data/rabbitmq.conf"

	if ! alive rabbitmq-epmd >/dev/null; then
		need_ports "$ONCEMILL_TEST_RABBITMQ_EPMD_PORT"
		launch rabbitmq-epmd epmd -port "$ONCEMILL_TEST_RABBITMQ_EPMD_PORT" -address 127.0.0.1
		await rabbitmq-epmd 10 port_taken "$ONCEMILL_TEST_RABBITMQ_EPMD_PORT"
	fi
	# RUNNING_UNDER_SYSTEMD makes the script become the server, so that the recorded pid is the server's.
	launch rabbitmq env -u NOTIFY_SOCKET RUNNING_UNDER_SYSTEMD=true \
		HOME="$data/home" \
		RABBITMQ_NODENAME=om@localhost \
		RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 \
		RABBITMQ_NODE_PORT="$ONCEMILL_TEST_RABBITMQ_PORT" \
		RABBITMQ_DIST_PORT="$ONCEMILL_TEST_RABBITMQ_DIST_PORT" \
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none' \
		ERL_EPMD_PORT="$ONCEMILL_TEST_RABBITMQ_EPMD_PORT" ERL_EPMD_ADDRESS=127.0.0.1 \
		RABBITMQ_MNESIA_BASE="$data/mnesia" \
		RABBITMQ_LOG_BASE="$LOG_DIR/rabbitmq" \
		RABBITMQ_PID_FILE="$data/pid" \
		RABBITMQ_ENABLED_PLUGINS_FILE="$data/enabled_plugins" \
		RABBITMQ_CONFIG_FILE="$data/rabbitmq.conf" \
		RABBITMQ_CONF_ENV_FILE="$data/env.conf" \
		/usr/lib/rabbitmq/bin/rabbitmq-server
	await rabbitmq 90 rabbitmq_answers
}

# rabbitmq_tls prints the settings of the listener with TLS. ONCEMILL_TEST_TLS_CLIENTS=true lets in clients with a certificate only.
rabbitmq_tls() {
	need_ports "$ONCEMILL_TEST_RABBITMQ_TLS_PORT"
	cat <<-CONF
		listeners.ssl.1 = 127.0.0.1:$ONCEMILL_TEST_RABBITMQ_TLS_PORT
		ssl_options.cacertfile = $ONCEMILL_TEST_TLS_DIR/ca.pem
		ssl_options.certfile = $ONCEMILL_TEST_TLS_DIR/server.pem
		ssl_options.keyfile = $ONCEMILL_TEST_TLS_DIR/server-key.pem
		ssl_options.verify = verify_peer
		ssl_options.fail_if_no_peer_cert = ${ONCEMILL_TEST_TLS_CLIENTS:-false}
	CONF
}

# rabbitmq_answers: the API is up, and AMQP answers the protocol header with connection.start.
# RabbitMQ opens its AMQP listeners last, that with TLS behind the other.
rabbitmq_answers() {
	[[ $(ask "$ONCEMILL_TEST_RABBITMQ_PORT" 'AMQP\x00\x00\x09\x01' 1) == 01 ]] &&
		http_ok "$ONCEMILL_TEST_RABBITMQ_API_PORT" /api/overview guest:guest &&
		{ [[ -z ${ONCEMILL_TEST_TLS_DIR:-} ]] || port_taken "$ONCEMILL_TEST_RABBITMQ_TLS_PORT"; }
}

rabbitmq_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end rabbitmq KILL 20 KILL
	else
		end rabbitmq TERM 40 KILL
	fi
}

# rabbitmq_down ends what rabbitmq_stop leaves for the next start.
rabbitmq_down() { end rabbitmq-epmd TERM 5 KILL; }

rabbitmq_address() { echo "127.0.0.1:$ONCEMILL_TEST_RABBITMQ_PORT, API $ONCEMILL_TEST_RABBITMQ_API_PORT"; }

rabbitmq_env() {
	echo "export ONCEMILL_TEST_RABBITMQ='amqp://guest:guest@127.0.0.1:$ONCEMILL_TEST_RABBITMQ_PORT/'"
	echo "export ONCEMILL_TEST_RABBITMQ_API='http://guest:guest@127.0.0.1:$ONCEMILL_TEST_RABBITMQ_API_PORT'"
	[[ -z ${ONCEMILL_TEST_TLS_DIR:-} ]] || echo "export ONCEMILL_TEST_RABBITMQ_TLS='localhost:$ONCEMILL_TEST_RABBITMQ_TLS_PORT'"
}
