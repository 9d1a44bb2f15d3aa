# shellcheck shell=bash
# PgBouncer in transaction mode, in front of the PostgreSQL of this script, which it does not start. It is built from the source of
# PGBOUNCER_RELEASE of Debian: releases before 1.21 know no named statements, and end when a statement is cancelled as its connection breaks.

PGBOUNCER_RELEASE=trixie

pgbouncer_ports() { port ONCEMILL_TEST_PGBOUNCER_PORT 16432; }

pgbouncer_install() {
	local bin="$DOWNLOADS/pgbouncer-$PGBOUNCER_RELEASE" work
	# It runs only where the libraries are that it was built with.
	! "$bin" --version >/dev/null 2>&1 || return 0
	need_packages /nonexistent/libevent gcc libc6-dev make pkg-config libevent-dev
	work=$(mktemp -d "$DOWNLOADS/pgbouncer.XXXXXX")
	if (cd "$work" && pgbouncer_source && pgbouncer_build) && [[ -x $work/build/pgbouncer ]]; then
		mv "$work/build/pgbouncer" "$bin"
		chmod 755 "$bin"
		rm -rf "$work"
	else
		rm -rf "$work"
		fail "PgBouncer cannot be built (log: $LOG_DIR/$SERVICE.up.log)"
	fi
}

# pgbouncer_source fetches and unpacks the source with apt-get, which checks it against Debian's keys, and with lists of its own.
pgbouncer_source() {
	local mirror apt
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/*$') || return
	echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $PGBOUNCER_RELEASE main" >sources.list
	mkdir -p lists/partial cache/archives/partial build
	apt=(apt-get -q -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$PWD/lists"
		-o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=)
	"${apt[@]}" update && "${apt[@]}" source --download-only pgbouncer &&
		tar -xf pgbouncer_*.orig.tar.gz -C build --strip-components=1
}

pgbouncer_build() {
	cd build && ./configure --without-openssl --without-cares && make -j "$(nproc)" pgbouncer
}

pgbouncer_start() {
	local data="$DATA_DIR/pgbouncer" as_nobody=()
	need_ports "$ONCEMILL_TEST_PGBOUNCER_PORT"
	mkdir -p "$data"
	# Roles are made by tests, each with server connections of its own: idle ones soon go.
	cat >"$data/pgbouncer.ini" <<-CONF
		[databases]
		* = host=127.0.0.1 port=$ONCEMILL_TEST_POSTGRES_PORT
		[pgbouncer]
		listen_addr = 127.0.0.1
		listen_port = $ONCEMILL_TEST_PGBOUNCER_PORT
		unix_socket_dir =
		auth_type = trust
		auth_file = $data/users
		auth_user = oncemill
		auth_query = SELECT rolname, '' FROM pg_roles WHERE rolname = \$1
		pool_mode = transaction
		max_prepared_statements = 200
		default_pool_size = 20
		max_client_conn = 1000
		max_db_connections = 150
		server_idle_timeout = 10
		query_wait_timeout = 30
	CONF
	echo '"oncemill" ""' >"$data/users"
	# It refuses to run as root.
	[[ $EUID -ne 0 ]] || as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups --)
	launch pgbouncer "${as_nobody[@]}" "$DOWNLOADS/pgbouncer-$PGBOUNCER_RELEASE" "$data/pgbouncer.ini"
	await pgbouncer 30 port_taken "$ONCEMILL_TEST_PGBOUNCER_PORT"
}

pgbouncer_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end pgbouncer KILL 20 KILL
	else
		end pgbouncer QUIT 20 KILL # the others wait for clients or transactions
	fi
}

pgbouncer_address() { echo "127.0.0.1:$ONCEMILL_TEST_PGBOUNCER_PORT"; }

pgbouncer_env() {
	echo "export ONCEMILL_TEST_PGBOUNCER='127.0.0.1:$ONCEMILL_TEST_PGBOUNCER_PORT'"
}
