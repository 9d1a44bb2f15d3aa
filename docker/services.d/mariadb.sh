# shellcheck shell=bash
# MariaDB from Debian, which speaks MySQL's protocol.

mariadb_ports() { port ONCEMILL_TEST_MARIADB_PORT 13306; }

mariadb_install() {
	need_packages /usr/sbin/mariadbd mariadb-server
	[[ -x /usr/sbin/mariadbd ]] || fail "no /usr/sbin/mariadbd after the installation"
}

mariadb_start() {
	local data="$DATA_DIR/mariadb"
	need_ports "$ONCEMILL_TEST_MARIADB_PORT"
	local user
	user=$(id -un)
	if [[ ! -d $data ]]; then
		rm -rf "$data.new"
		# Local test data: whoever reaches 127.0.0.1 is root, without a password.
		mariadb-install-db --no-defaults --user="$user" --datadir="$data.new" \
			--auth-root-authentication-method=normal --skip-test-db
		mv "$data.new" "$data"
	fi
	# A server that starts removes the temporary tables that it finds, also another server's.
	mkdir -p "$data.tmp"
	# The default character set and collation merge keys that differ; the tables must not depend on them.
	launch mariadb /usr/sbin/mariadbd --no-defaults --user="$user" --datadir="$data" --tmpdir="$data.tmp" \
		--port="$ONCEMILL_TEST_MARIADB_PORT" --bind-address=127.0.0.1 --skip-name-resolve \
		--socket="$data/mariadb.sock" --pid-file="$data/mariadb.pid" \
		--max-connections=400 --max-allowed-packet=16M --innodb-flush-log-at-trx-commit=1 \
		--character-set-server=utf8mb4 --collation-server=utf8mb4_general_ci
	await mariadb 60 mariadb_sql 'select 1'
	mariadb_sql 'create database if not exists oncemill'
}

mariadb_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end mariadb KILL 20 KILL
	else
		end mariadb TERM 30 KILL
	fi
}

mariadb_address() { echo "127.0.0.1:$ONCEMILL_TEST_MARIADB_PORT"; }

mariadb_env() {
	echo "export ONCEMILL_TEST_MYSQL='root@tcp(127.0.0.1:$ONCEMILL_TEST_MARIADB_PORT)/oncemill'"
}

mariadb_sql() {
	mariadb --no-defaults --protocol=tcp --connect-timeout=3 -h 127.0.0.1 -P "$ONCEMILL_TEST_MARIADB_PORT" -u root -N -e "$1"
}
