# shellcheck shell=bash
# Redis from Debian.

# The bus of a cluster would by default listen 10000 above the port, which is often in
# the range that outgoing connections take theirs from.
redis_ports() {
	port ONCEMILL_TEST_REDIS_PORT 16379
	port ONCEMILL_TEST_REDIS_BUS_PORT 16380
}

redis_install() {
	need_packages /usr/bin/redis-server redis-server
	[[ -x /usr/bin/redis-server ]] || fail "no /usr/bin/redis-server after the installation"
}

# ONCEMILL_TEST_REDIS_OPTIONS adds settings for a server of a test's own, such as "--appendonly no".
redis_start() {
	local data="$DATA_DIR/redis" options=()
	need_ports "$ONCEMILL_TEST_REDIS_PORT"
	mkdir -p "$data"
	read -ra options <<<"${ONCEMILL_TEST_REDIS_OPTIONS:-}"
	launch redis /usr/bin/redis-server --port "$ONCEMILL_TEST_REDIS_PORT" --cluster-port "$ONCEMILL_TEST_REDIS_BUS_PORT" \
		--bind 127.0.0.1 --dir "$data" --daemonize no \
		--save "" --appendonly yes --appendfsync everysec --maxmemory-policy noeviction "${options[@]}"
	await redis 30 redis_answers
}

redis_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end redis KILL 20 KILL
	else
		end redis TERM 30 KILL
	fi
}

redis_address() { echo "127.0.0.1:$ONCEMILL_TEST_REDIS_PORT"; }

redis_env() { echo "export ONCEMILL_TEST_REDIS='redis://127.0.0.1:$ONCEMILL_TEST_REDIS_PORT'"; }

# A server that still loads its data answers with an error.
redis_answers() { [[ $(redis-cli -h 127.0.0.1 -p "$ONCEMILL_TEST_REDIS_PORT" ping 2>/dev/null) == PONG ]]; }
