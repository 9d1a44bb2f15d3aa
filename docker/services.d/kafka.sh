# shellcheck shell=bash
# Apache Kafka, one node in KRaft mode, from Maven Central.

KAFKA_VERSION=4.4.0

kafka_ports() {
	port ONCEMILL_TEST_KAFKA_PORT 19092
	port ONCEMILL_TEST_KAFKA_CONTROLLER_PORT 19093
	port ONCEMILL_TEST_KAFKA_TLS_PORT 19094
	port ONCEMILL_TEST_KAFKA_PROXIED_PORT 19095
}

kafka_install() {
	local libs="$DOWNLOADS/kafka-$KAFKA_VERSION"
	need_packages java default-jre-headless
	[[ ! -e $libs/complete ]] || return 0
	need_packages mvn maven
	mkdir -p "$libs"
	mvn -q -B -f "$HERE/services.d/kafka-pom.xml" -Dkafka.version="$KAFKA_VERSION" \
		dependency:copy-dependencies -DoutputDirectory="$libs" ||
		fail "mvn could not fetch Kafka (log: $LOG_DIR/$SERVICE.up.log)"
	touch "$libs/complete"
}

kafka_start() {
	local data="$DATA_DIR/kafka"
	need_ports "$ONCEMILL_TEST_KAFKA_PORT" "$ONCEMILL_TEST_KAFKA_CONTROLLER_PORT"
	mkdir -p "$data"
	cat >"$data/server.properties" <<-CONF
		process.roles=broker,controller
		node.id=1
		controller.quorum.voters=1@127.0.0.1:$ONCEMILL_TEST_KAFKA_CONTROLLER_PORT
		listeners=PLAINTEXT://127.0.0.1:$ONCEMILL_TEST_KAFKA_PORT,CONTROLLER://127.0.0.1:$ONCEMILL_TEST_KAFKA_CONTROLLER_PORT
		advertised.listeners=PLAINTEXT://127.0.0.1:$ONCEMILL_TEST_KAFKA_PORT
		listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
		controller.listener.names=CONTROLLER
		log.dirs=$data/logs
		num.partitions=6
		auto.create.topics.enable=false
		default.replication.factor=1
		group.initial.rebalance.delay.ms=0
		offsets.topic.num.partitions=8
		offsets.topic.replication.factor=1
		transaction.state.log.num.partitions=8
		transaction.state.log.replication.factor=1
		transaction.state.log.min.isr=1
		share.coordinator.state.topic.num.partitions=1
		share.coordinator.state.topic.replication.factor=1
		share.coordinator.state.topic.min.isr=1
	CONF
	[[ -z ${ONCEMILL_TEST_TLS_DIR:-} ]] || kafka_tls "$data"
	[[ -z ${ONCEMILL_TEST_KAFKA_PROXY:-} ]] || kafka_proxied "$data"
	if [[ ! -e $data/logs/meta.properties ]]; then
		local id
		id=$(head -c 16 /dev/urandom | base64 -w0 | tr '+/' '-_' | tr -d =)
		rm -rf "$data/logs"
		# An id that begins with a hyphen would be an option.
		kafka_java -Xmx128m kafka.tools.StorageTool format -t "${id/#-/A}" -c "$data/server.properties"
	fi
	kafka_java launch -Xmx512m -XX:+ExitOnOutOfMemoryError \
		-Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true \
		kafka.Kafka "$data/server.properties"
	await kafka 90 kafka_answers
}

# kafka_tls DATA adds a listener with TLS and SCRAM; ONCEMILL_TEST_TLS_CLIENTS=true lets in clients with a certificate only.
kafka_tls() {
	need_ports "$ONCEMILL_TEST_KAFKA_TLS_PORT"
	cat "$ONCEMILL_TEST_TLS_DIR"/{server-key,server}.pem >"$1/server.pem"
	kafka_listener "$1" TLS SASL_SSL "127.0.0.1:$ONCEMILL_TEST_KAFKA_TLS_PORT" "localhost:$ONCEMILL_TEST_KAFKA_TLS_PORT"
	cat >>"$1/server.properties" <<-CONF
		ssl.keystore.type=PEM
		ssl.keystore.location=$1/server.pem
		ssl.truststore.type=PEM
		ssl.truststore.location=$ONCEMILL_TEST_TLS_DIR/ca.pem
		listener.name.tls.ssl.client.auth=$([[ ${ONCEMILL_TEST_TLS_CLIENTS:-} == true ]] && echo required || echo none)
		sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
		listener.name.tls.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
		listener.name.tls.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
	CONF
}

# kafka_proxied DATA adds a listener that sends its clients to ONCEMILL_TEST_KAFKA_PROXY, host:port of a proxy before it.
kafka_proxied() {
	need_ports "$ONCEMILL_TEST_KAFKA_PROXIED_PORT"
	kafka_listener "$1" PROXIED PLAINTEXT "127.0.0.1:$ONCEMILL_TEST_KAFKA_PROXIED_PORT" "$ONCEMILL_TEST_KAFKA_PROXY"
}

# kafka_listener DATA NAME PROTOCOL ADDRESS ADVERTISED adds a listener.
kafka_listener() {
	sed -i -e "s|^listeners=.*|&,$2://$4|" -e "s|^advertised.listeners=.*|&,$2://$5|" \
		-e "s|^listener.security.protocol.map=.*|&,$2:$3|" "$1/server.properties"
}

# kafka_java [launch] ARGUMENT... runs Java with Kafka's libraries, in the background on request.
kafka_java() {
	local run=()
	if [[ $1 == launch ]]; then
		run=(launch kafka)
		shift
	fi
	"${run[@]}" java -cp "$DOWNLOADS/kafka-$KAFKA_VERSION/*" "$@"
}

# kafka_answers asks for the metadata (version 1, no topic) and wants one broker in it:
# a broker is listed there once the controller has let it in.
kafka_answers() {
	local answer
	answer=$(ask "$ONCEMILL_TEST_KAFKA_PORT" '\x00\x00\x00\x0e\x00\x03\x00\x01\x00\x00\x00\x07\xff\xff\x00\x00\x00\x00' 12) || return 1
	[[ ${answer:8} == 0000000700000001 ]]
}

kafka_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end kafka KILL 20 KILL
	else
		end kafka TERM 30 KILL
	fi
}

kafka_address() { echo "127.0.0.1:$ONCEMILL_TEST_KAFKA_PORT"; }

kafka_env() {
	echo "export ONCEMILL_TEST_KAFKA='127.0.0.1:$ONCEMILL_TEST_KAFKA_PORT'"
	[[ -z ${ONCEMILL_TEST_TLS_DIR:-} ]] || echo "export ONCEMILL_TEST_KAFKA_TLS='localhost:$ONCEMILL_TEST_KAFKA_TLS_PORT'"
}
