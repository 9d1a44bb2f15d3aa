# shellcheck shell=bash
# PostgreSQL from Debian. As root it runs as the user postgres, which initdb demands.

postgres_ports() { port ONCEMILL_TEST_POSTGRES_PORT 15432; }

postgres_install() {
	[[ -n $(postgres_bin) ]] || need_packages /nonexistent/postgres postgresql
	[[ -n $(postgres_bin) ]] || fail "no /usr/lib/postgresql/*/bin/postgres after the installation"
}

postgres_start() {
	local bin data="$DATA_DIR/postgres"
	bin=$(postgres_bin)
	need_ports "$ONCEMILL_TEST_POSTGRES_PORT"
	local as_postgres=()
	if [[ $EUID -eq 0 ]]; then
		as_postgres=(setpriv --reuid=postgres --regid=postgres --init-groups --)
		"${as_postgres[@]}" test -x "$DATA_DIR" ||
			fail "the user postgres cannot enter $DATA_DIR: set ONCEMILL_TEST_SERVICES_DIR to another folder"
	fi
	if [[ ! -d $data ]]; then
		rm -rf "$data.new"
		mkdir -m 700 "$data.new"
		[[ $EUID -ne 0 ]] || chown postgres: "$data.new"
		# Local test data: whoever reaches 127.0.0.1 is oncemill, without a password.
		"${as_postgres[@]}" "$bin/initdb" -D "$data.new" -U oncemill -A trust -E UTF8 --locale=C.UTF-8
		mv "$data.new" "$data"
	fi
	local tls=()
	[[ -z ${ONCEMILL_TEST_TLS_DIR:-} ]] || postgres_tls "$data"
	launch postgres "${as_postgres[@]}" "$bin/postgres" -D "$data" -p "$ONCEMILL_TEST_POSTGRES_PORT" \
		-c listen_addresses=127.0.0.1 -c unix_socket_directories= \
		-c max_connections=300 -c fsync=on -c max_prepared_transactions=50 "${tls[@]}"
	# Crash recovery answers "starting up" until it has replayed the log.
	await postgres 60 postgres_sql postgres 'select 1'
	if [[ $(postgres_sql postgres "select 1 from pg_database where datname = 'oncemill'") != 1 ]]; then
		postgres_sql postgres 'create database oncemill'
	fi
}

# postgres_tls DATA takes the certificates: everybody but oncemill then needs TLS and a password, and the role "mutual" a certificate, too.
postgres_tls() {
	install -m 600 "$ONCEMILL_TEST_TLS_DIR"/{ca,server,server-key}.pem "$1"
	cat >"$1/pg_hba.conf" <<-CONF
		host all oncemill 127.0.0.1/32 trust
		hostssl all mutual 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
		hostssl all all 127.0.0.1/32 scram-sha-256
	CONF
	[[ $EUID -ne 0 ]] || chown postgres: "$1"/{ca,server,server-key}.pem "$1/pg_hba.conf"
	tls=(-c ssl=on -c ssl_ca_file=ca.pem -c ssl_cert_file=server.pem -c ssl_key_file=server-key.pem)
}

postgres_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end postgres QUIT 20 QUIT # no checkpoint: the next start recovers from the log
	else
		end postgres INT 20 QUIT
	fi
}

postgres_address() { echo "127.0.0.1:$ONCEMILL_TEST_POSTGRES_PORT"; }

postgres_env() {
	echo "export ONCEMILL_TEST_POSTGRES='postgres://oncemill@127.0.0.1:$ONCEMILL_TEST_POSTGRES_PORT/oncemill?sslmode=disable'"
	[[ -z ${ONCEMILL_TEST_TLS_DIR:-} ]] || echo "export ONCEMILL_TEST_POSTGRES_TLS='localhost:$ONCEMILL_TEST_POSTGRES_PORT'"
}

# postgres_bin prints the folder of the newest installed server, or nothing.
postgres_bin() {
	find /usr/lib/postgresql -maxdepth 3 -path '*/bin/postgres' -printf '%h\n' 2>/dev/null | sort -V | tail -n 1
}

postgres_sql() {
	PGCONNECT_TIMEOUT=3 "$(postgres_bin)/psql" -X -q -A -t -h 127.0.0.1 -p "$ONCEMILL_TEST_POSTGRES_PORT" -U oncemill -d "$1" -c "$2"
}
