-- Statements for MySQL 8 and MariaDB 10.6+. The rules behind them: docs/explanation/store.md.
-- Sections with several statements travel as one string and one round trip.

-- name: create_node_tables
CREATE TABLE IF NOT EXISTS queue_head (
    queue_id        BIGINT      NOT NULL PRIMARY KEY,
    head            BIGINT      NOT NULL,
    low             BIGINT      NOT NULL,
    state           VARCHAR(10) NOT NULL,
    node_epoch      BIGINT      NOT NULL,
    last_stored_at  DATETIME(3) NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'a row for each queue: offset of its next message, lock of its writers';
CREATE TABLE IF NOT EXISTS reader (
    group_id  BIGINT       NOT NULL,
    instance  VARCHAR(100) NOT NULL,
    queue_id  BIGINT       NOT NULL,
    epoch     BIGINT       NOT NULL,
    owner     VARCHAR(150) NOT NULL,
    committed BIGINT       NOT NULL,
    rewinds   BIGINT       NOT NULL,
    PRIMARY KEY (group_id, instance, queue_id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'committed offset of a group in a queue';
CREATE TABLE IF NOT EXISTS sent_batch (
    batch_id      BINARY(16)  NOT NULL PRIMARY KEY,
    queue_id      BIGINT      NOT NULL,
    first_offset  BIGINT      NOT NULL,
    message_count INT         NOT NULL,
    digest        BINARY(16)  NOT NULL,
    stored_at     DATETIME(3) NOT NULL,
    KEY sent_batch_stored_at (stored_at)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'stored batches, by which a repeated send is known';
CREATE TABLE IF NOT EXISTS queue_gap (
    queue_id    BIGINT       NOT NULL,
    from_offset BIGINT       NOT NULL,
    to_offset   BIGINT       NOT NULL,
    cause       VARCHAR(100) NOT NULL,
    PRIMARY KEY (queue_id, from_offset)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'offsets without a message, declared when a node was replaced';
CREATE TABLE IF NOT EXISTS node_pulse (
    worker INT    NOT NULL PRIMARY KEY,
    n      BIGINT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'rows that brokers write to measure the node';
CREATE TABLE IF NOT EXISTS delayed_message (
    id        BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue_id  BIGINT       NOT NULL,
    due_at    DATETIME(3)  NOT NULL,
    by_key    TINYINT      NOT NULL,
    known_as  VARCHAR(50)  NULL,
    batch_id  BINARY(16)   NOT NULL,
    position  INT          NOT NULL,
    msg_key   VARCHAR(200) NULL,
    tag       VARCHAR(100) NULL,
    headers   MEDIUMTEXT   NULL,
    body      MEDIUMBLOB   NOT NULL,
    trace_id  VARCHAR(100) NULL,
    producer  VARCHAR(100) NOT NULL,
    stored_at DATETIME(3)  NOT NULL,
    attempt   SMALLINT     NOT NULL,
    origin    TEXT         NULL,
    UNIQUE KEY delayed_message_batch (batch_id, position),
    KEY delayed_message_due (queue_id, due_at)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'messages that wait for their time'

-- name: create_message_table
CREATE TABLE IF NOT EXISTS {table} (
    msg_offset BIGINT       NOT NULL PRIMARY KEY,
    msg_key    VARCHAR(200) NULL,
    tag        VARCHAR(100) NULL,
    headers    MEDIUMTEXT   NULL,
    body       MEDIUMBLOB   NOT NULL,
    trace_id   VARCHAR(100) NULL,
    producer   VARCHAR(100) NOT NULL,
    stored_at  DATETIME(3)  NOT NULL,
    attempt    SMALLINT     NOT NULL DEFAULT 0,
    origin     TEXT         NULL{key_index}
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT :comment
PARTITION BY RANGE (msg_offset) (
    PARTITION below_100000 VALUES LESS THAN (100000),
    PARTITION below_200000 VALUES LESS THAN (200000),
    PARTITION below_300000 VALUES LESS THAN (300000)
)

-- Forces the primary key, as search_messages does: a key index of which a crash left only the definition fails.
-- name: select_used
SELECT EXISTS (SELECT 1 FROM {table} FORCE INDEX (PRIMARY))
    OR EXISTS (SELECT 1 FROM queue_head WHERE queue_id = :queue AND head > 0)

-- Key indexes (messagestore/topology/key_indexes.py). An index of a partitioned table has a tree for each partition.

-- name: select_key_index
SELECT 1 FROM information_schema.STATISTICS
 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = :table_name AND INDEX_NAME = 'message_key'

-- name: add_key_index
ALTER TABLE {table} ADD INDEX message_key (msg_key), ALGORITHM=INPLACE, LOCK=NONE

-- Fails if the partition lacks the index. CHECK TABLE does not notice that.
-- name: probe_key_index
SELECT 1 FROM {table} PARTITION ({partition}) FORCE INDEX (message_key) WHERE msg_key = '' LIMIT 1

-- Gives a partition the indexes of the table's definition. Writers of the table wait meanwhile.
-- name: rebuild_partition
ALTER TABLE {table} REBUILD PARTITION {partition}

-- name: drop_key_index
ALTER TABLE {table} DROP INDEX message_key, ALGORITHM=INPLACE, LOCK=NONE

-- The comparison of columns ignores trailing blanks, so the lengths are compared as well.
-- name: find_key
SELECT msg_offset FROM {table} FORCE INDEX (message_key)
 WHERE msg_key = :msg_key AND LENGTH(msg_key) = LENGTH(:msg_key)
   AND msg_offset >= :first_offset AND msg_offset < :end_offset
 ORDER BY msg_offset LIMIT :most

-- Empty on a server that cannot be part of a Galera cluster.
-- name: select_wsrep
SHOW GLOBAL VARIABLES LIKE 'wsrep_on'

-- name: drop_message_table
DROP TABLE IF EXISTS {table}

-- name: insert_head
INSERT IGNORE INTO queue_head (queue_id, head, low, state, node_epoch, last_stored_at)
VALUES (:queue, 0, 0, 'rw', :node_epoch, UTC_TIMESTAMP(3))

-- name: delete_head
DELETE FROM queue_head WHERE queue_id = :queue

-- name: delete_queue_readers
DELETE FROM reader WHERE queue_id = :queue

-- name: update_queue_state
UPDATE queue_head SET state = :state WHERE queue_id = :queue

-- name: close_heads
UPDATE queue_head SET state = 'ro' WHERE state = 'rw'

-- name: open_heads
UPDATE queue_head SET state = 'rw' WHERE state = 'ro' AND queue_id IN ({queues})

-- A head row that is missing or refuses makes @b NULL, and the next INSERT fails with 1048. LAST_INSERT_ID() alone
-- would not tell: it would still be that of an earlier send on this connection.
-- name: publish_open
UPDATE queue_head
   SET head = LAST_INSERT_ID(head + :message_count),
       last_stored_at = GREATEST(UTC_TIMESTAMP(3), last_stored_at)
 WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch;
SET @b = IF(ROW_COUNT() = 1, LAST_INSERT_ID() - :message_count, NULL),
    @t = (SELECT last_stored_at FROM queue_head WHERE queue_id = :queue);
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
VALUES {batches};

-- The same with the variables set by the UPDATE itself, which MySQL deprecates.
-- name: publish_open_mariadb
SET @b = NULL;
UPDATE queue_head
   SET head = LAST_INSERT_ID((@b := head) + :message_count),
       last_stored_at = (@t := GREATEST(UTC_TIMESTAMP(3), last_stored_at))
 WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch;
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
VALUES {batches}

-- name: publish_rows
INSERT INTO {table} (msg_offset, msg_key, tag, headers, body, trace_id, producer, stored_at)
VALUES {rows}

-- name: publish_first_mariadb
SELECT @b

-- A compound statement around all of these: the server answers once instead of once per statement.
-- name: publish_whole_mariadb
BEGIN NOT ATOMIC START TRANSACTION; {statements}; COMMIT; SELECT @b; END

-- name: select_sent_batch
SELECT queue_id, first_offset, message_count, digest FROM sent_batch WHERE batch_id = :batch_id

-- name: delete_old_batches
DELETE FROM sent_batch WHERE stored_at < UTC_TIMESTAMP(3) - INTERVAL :hours HOUR ORDER BY stored_at LIMIT :most

-- name: select_head
SELECT head, low, state, node_epoch FROM queue_head WHERE queue_id = :queue

-- name: select_heads
SELECT queue_id, head FROM queue_head WHERE queue_id IN ({queues})

-- name: select_all_heads
SELECT queue_id, head FROM queue_head

-- name: select_recent_heads
SELECT queue_id, head FROM queue_head WHERE last_stored_at >= UTC_TIMESTAMP(3) - INTERVAL :seconds SECOND

-- name: select_positions
SELECT h.queue_id, h.head, h.low, r.epoch, r.owner, r.committed
  FROM queue_head h
  LEFT JOIN reader r ON r.queue_id = h.queue_id AND r.group_id = :group_id AND r.instance = :instance
 WHERE h.queue_id IN ({queues})

-- name: select_messages
SELECT msg_offset, msg_key, tag, headers, body, trace_id,
       CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_tagged_messages
SELECT msg_offset, msg_key, tag, IF(tag IN ({tags}), headers, NULL), IF(tag IN ({tags}), body, NULL), trace_id,
       CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- A header filter is tested by the broker: first without bodies, then with those of the messages it takes.

-- name: select_headers
SELECT msg_offset, tag, headers
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_chosen_messages
SELECT msg_offset, msg_key, tag,
       IF(msg_offset IN ({offsets}), headers, NULL), IF(msg_offset IN ({offsets}), body, NULL), trace_id,
       CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_closed_heads
SELECT queue_id, state FROM queue_head WHERE state <> 'rw'

-- name: select_gaps
SELECT from_offset, to_offset FROM queue_gap WHERE queue_id = :queue AND to_offset > :position ORDER BY from_offset

-- name: select_stored_at
SELECT CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)
  FROM {table} WHERE msg_offset >= :first_offset ORDER BY msg_offset LIMIT 1

-- name: select_producer
SELECT producer FROM {table} WHERE msg_offset = :message_offset

-- name: select_now
SELECT CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(3)) * 1000 AS SIGNED)

-- name: insert_readers
INSERT IGNORE INTO reader (group_id, instance, queue_id, epoch, owner, committed, rewinds)
SELECT :group_id, :instance, queue_id, :epoch, '', LEAST(GREATEST(:position, low), head), 0
  FROM queue_head WHERE queue_id IN ({queues})

-- name: delete_readers
DELETE FROM reader WHERE group_id = :group_id AND queue_id IN ({queues}) AND epoch < :below

-- name: delete_instance_readers
DELETE FROM reader
 WHERE group_id = :group_id AND instance = :instance AND queue_id IN ({queues}) AND epoch < :below

-- name: delete_instance
DELETE FROM reader WHERE group_id = :group_id AND instance = :instance

-- name: acquire_reader
UPDATE reader SET epoch = :epoch, owner = :owner
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue
   AND (epoch < :epoch OR (epoch = :epoch AND owner = :owner));
SELECT epoch, owner, committed FROM reader
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue

-- Its insert id says where the group stood before; :position itself where retention had gone past that, because
-- then the way between was not handled. All of it in WHERE: a subselect in SET would wait behind every writer.
-- name: update_committed
UPDATE reader SET committed = GREATEST(committed, :position)
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue
   AND epoch = :epoch AND owner = :owner
   AND :position <= (SELECT head FROM queue_head WHERE queue_id = :queue)
   AND LAST_INSERT_ID(
         IF(committed < (SELECT low FROM queue_head WHERE queue_id = :queue), :position, committed)) >= 0

-- name: select_committed
SELECT committed FROM reader
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue FOR UPDATE

-- name: reset_reader
UPDATE reader SET committed = :position, epoch = epoch + 1, owner = '', rewinds = rewinds + 1
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue

-- name: select_server
SHOW VARIABLES WHERE Variable_name IN ('version', 'character_set_database', 'collation_database',
    'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'binlog_format', 'binlog_storage_engine', 'read_only')

-- name: select_tls
SHOW SESSION STATUS WHERE Variable_name IN ('Ssl_version', 'Ssl_cipher', 'Ssl_server_not_after')

-- What stands between (messagestore/nodes/server_checks.py): a proxy answers some of these itself, when they are
-- written exactly so, and combined ones not.

-- name: select_place
SELECT VERSION(), CONNECTION_ID(), COALESCE(@catmq_mark = :mark, 0)

-- name: set_mark
SET @catmq_mark = :mark

-- name: select_version_comment
select @@version_comment limit 1

-- name: select_proxy_version
SELECT @@proxy_version

-- name: show_limits
SHOW VARIABLES WHERE Variable_name IN ('max_statement_time', 'max_execution_time', 'wait_timeout')

-- What the doctor reads. Variables that a server lacks are left out.

-- name: show_operation
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('max_connections', 'log_bin', 'binlog_row_image')

-- name: show_operation_status
SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected'

-- name: show_isolation
SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')

-- What an examination tries on a table of its own: see tables.try_rights.

-- name: try_insert
INSERT INTO {table} (msg_offset, body, producer, stored_at) VALUES (0, '', '', UTC_TIMESTAMP(3))

-- name: try_select
SELECT msg_offset FROM {table}

-- name: try_update
UPDATE {table} SET attempt = 1 WHERE msg_offset = 0

-- name: try_delete
DELETE FROM {table} WHERE msg_offset = 0

-- name: try_alter
ALTER TABLE {table} ADD PARTITION (PARTITION below_400000 VALUES LESS THAN (400000))

-- name: try_process
SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = CONNECTION_ID()

-- name: select_account
SELECT CURRENT_USER()

-- What verify asks (messagestore/verify). Chunks are short: no statement runs long on a live node.

-- name: count_rows
SELECT COUNT(*), CAST(UNIX_TIMESTAMP(MIN(stored_at)) * 1000 AS SIGNED),
       CAST(UNIX_TIMESTAMP(MAX(stored_at)) * 1000 AS SIGNED), CAST(COALESCE(SUM(falls), 0) AS SIGNED)
  FROM (SELECT stored_at, stored_at < LAG(stored_at) OVER (ORDER BY msg_offset) AS falls
          FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset) chunk

-- name: select_offsets
SELECT msg_offset, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_ends
SELECT (SELECT MIN(msg_offset) FROM {table} WHERE msg_offset >= :first_offset),
       (SELECT MAX(msg_offset) FROM {table} WHERE msg_offset >= :first_offset)

-- name: select_all_readers
SELECT queue_id, group_id, instance, epoch, owner, committed FROM reader

-- name: select_message_tables
SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'message%'

-- name: select_reader_groups
SELECT DISTINCT group_id FROM reader

-- name: select_readers
SELECT queue_id, group_id, instance, epoch, owner, committed
  FROM reader WHERE group_id = :group_id AND queue_id IN ({queues})

-- name: select_batch_ends
SELECT MAX(batch_id), CAST(UNIX_TIMESTAMP(MIN(stored_at)) * 1000 AS SIGNED) FROM sent_batch

-- name: select_batch_page
SELECT COUNT(*), MAX(batch_id), CAST(COALESCE(SUM(queue_id IN ({queues})), 0) AS SIGNED) FROM (
    SELECT batch_id, queue_id FROM sent_batch
     WHERE batch_id > :after AND batch_id <= :last ORDER BY batch_id LIMIT :most) page

-- name: select_batches
SELECT batch_id, queue_id, first_offset, message_count, digest,
       CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)
  FROM sent_batch
 WHERE batch_id > :after AND batch_id <= :last AND queue_id IN ({queues})
 ORDER BY batch_id

-- What the loss of a node asks (messagestore/vetting, promotion). The last ones are not for every account.
-- A node of schema version 1 has the identity only, so whoever wants more takes all columns there are.

-- name: create_identity
CREATE TABLE IF NOT EXISTS node_identity (
    identity       VARCHAR(36) NOT NULL PRIMARY KEY,
    schema_version INT         NOT NULL DEFAULT {version},
    min_release    VARCHAR(20) NOT NULL DEFAULT ''
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'id of the node, version of its tables'

-- name: write_identity
DELETE FROM node_identity WHERE identity <> :identity;
INSERT INTO node_identity (identity) VALUES (:identity) ON DUPLICATE KEY UPDATE identity = :identity

-- name: select_identity
SELECT * FROM node_identity

-- name: select_standing
SELECT * FROM node_identity;
SELECT queue_id, head FROM queue_head

-- name: select_node_epochs
SELECT DISTINCT node_epoch FROM queue_head WHERE state <> 'retired'

-- name: select_highest_committed
SELECT queue_id, MAX(committed) FROM reader GROUP BY queue_id

-- name: select_gaps_of
SELECT queue_id, from_offset, to_offset FROM queue_gap
 WHERE queue_id IN ({queues}) ORDER BY queue_id, from_offset

-- name: raise_head
INSERT INTO queue_gap (queue_id, from_offset, to_offset, cause)
SELECT queue_id, head, :head, :cause FROM queue_head WHERE queue_id = :queue AND head < :head;
UPDATE queue_head SET head = :head WHERE queue_id = :queue AND head < :head

-- name: place_head
UPDATE queue_head SET head = :head, low = :low WHERE queue_id = :queue AND head = 0

-- name: fence_heads
UPDATE queue_head SET node_epoch = :node_epoch, state = CASE state WHEN 'retired' THEN state ELSE 'ro' END

-- name: raise_reader
UPDATE reader SET owner = CASE WHEN epoch < :epoch THEN '' ELSE owner END,
                  epoch = CASE WHEN epoch < :epoch THEN :epoch ELSE epoch END
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue

-- All threads that copy another server; those that wait for more to apply; and of these the one that has read all.
-- The others are workers that apply in parallel: of MySQL, of MariaDB.
-- name: select_replication
SELECT COUNT(*),
       CAST(COALESCE(SUM(state LIKE '%read all relay log%' OR state IN (
           'Waiting for an event from Coordinator', 'Waiting for work from SQL thread')), 0) AS SIGNED),
       CAST(COALESCE(SUM(state LIKE '%read all relay log%'), 0) AS SIGNED)
  FROM {processlist} WHERE user = 'system user' AND command <> 'Daemon'

-- How far the binary log is. A file and a position are not for every account.

-- name: select_gtid_mariadb
SELECT @@GLOBAL.gtid_binlog_pos

-- name: select_gtid_mysql
SELECT IF(@@GLOBAL.gtid_mode IN ('ON', 'ON_PERMISSIVE'), @@GLOBAL.gtid_executed, '')

-- name: show_binlog_status
SHOW BINARY LOG STATUS

-- name: show_master_status
SHOW MASTER STATUS

-- A value that stays: tried without effect.
-- name: try_read_only
SET GLOBAL read_only = @@GLOBAL.read_only

-- name: select_privileges
SELECT grantee, privilege_type, CURRENT_USER(), CURRENT_ROLE() FROM information_schema.user_privileges

-- name: stop_receiving
STOP REPLICA IO_THREAD

-- name: stop_replicating
STOP REPLICA

-- name: forbid_writes
SET GLOBAL read_only = 1

-- name: forbid_all_writes
SET GLOBAL super_read_only = 1

-- name: allow_writes
SET GLOBAL read_only = 0

-- name: select_connections
SELECT id FROM {processlist} WHERE db = DATABASE() AND id <> CONNECTION_ID() AND user <> 'system user'

-- name: kill_connection
KILL :connection

-- Partitions (messagestore/heads/partitions.py). A table of an earlier version has one row here, without a name.

-- name: select_partitions
SELECT PARTITION_NAME, PARTITION_METHOD, PARTITION_DESCRIPTION,
       CAST(COALESCE(DATA_LENGTH, 0) + COALESCE(INDEX_LENGTH, 0) AS SIGNED)
  FROM information_schema.PARTITIONS
 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = :table_name
 ORDER BY PARTITION_ORDINAL_POSITION

-- name: add_partitions
ALTER TABLE {table} ADD PARTITION ({partitions})

-- name: drop_partition
ALTER TABLE {table} DROP PARTITION {partition}

-- name: limit_lock_wait
SET SESSION lock_wait_timeout = 1

-- MySQL 9.7 has neither SHA1() nor MD5().
-- name: take_table_lock
SELECT GET_LOCK(CONCAT('catmq ', LEFT(SHA2(DATABASE(), 256), 20), ' ', :table_name), :seconds)

-- InnoDB writes down the start of a transaction in the server's own time zone. An index that is being
-- built for another table is a transaction as well, but blocks no other table.
-- name: select_long_transactions
SELECT p.ID, p.USER,
       CAST(TIMESTAMPDIFF(SECOND, t.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS SIGNED)
  FROM information_schema.INNODB_TRX t
  JOIN {processlist} p ON p.ID = t.trx_mysql_thread_id
 WHERE p.DB = DATABASE() AND p.ID <> CONNECTION_ID()
   AND COALESCE(p.INFO, '') NOT LIKE 'ALTER TABLE %'
   AND t.trx_started < CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM') - INTERVAL :seconds SECOND
 ORDER BY t.trx_started

-- Retention (messagestore/retention). Nothing at or above `low` can be deleted.

-- name: raise_low
UPDATE queue_head SET low = :low WHERE queue_id = :queue AND low < :low AND head >= :low

-- name: delete_below
DELETE FROM {table}
 WHERE msg_offset < :end_offset AND msg_offset < (SELECT low FROM queue_head WHERE queue_id = :queue)

-- name: select_row_bytes
SELECT COUNT(*), CAST(COALESCE(SUM(LENGTH(body) + COALESCE(LENGTH(headers), 0) + COALESCE(LENGTH(msg_key), 0)
       + COALESCE(LENGTH(tag), 0) + COALESCE(LENGTH(trace_id), 0) + LENGTH(producer)), 0) AS SIGNED)
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset

-- Changes of node tables (messagestore/engine/schema_steps.py), and what a run of them asks.

-- name: add_schema_version
ALTER TABLE node_identity
  ADD COLUMN schema_version INT NOT NULL DEFAULT 1,
  ADD COLUMN min_release VARCHAR(20) NOT NULL DEFAULT '', ALGORITHM=INSTANT

-- name: update_schema_version
UPDATE node_identity SET schema_version = :version

-- name: update_min_release
UPDATE node_identity SET min_release = :release

-- name: select_tables_with
SELECT table_name FROM information_schema.columns
 WHERE table_schema = DATABASE() AND table_name LIKE :tables AND column_name = :column

-- The table, if it exists without the index.
-- name: select_tables_lacking
SELECT table_name FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_name = :table_name
   AND NOT EXISTS (SELECT 1 FROM information_schema.statistics
                    WHERE table_schema = DATABASE() AND table_name = :table_name AND index_name = :index_name)

-- The size of the node's files, exactly where the account may see it (PROCESS), else as statistics say.

-- name: select_tablespaces
SELECT CAST(COALESCE(SUM(FILE_SIZE), 0) AS SIGNED) FROM information_schema.{view}
 WHERE LEFT(NAME, CHAR_LENGTH(DATABASE()) + 1) = CONCAT(DATABASE(), '/')

-- name: select_table_sizes
SELECT CAST(COALESCE(SUM(DATA_LENGTH + INDEX_LENGTH + DATA_FREE), 0) AS SIGNED)
  FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()

-- name: select_queue_sizes
SELECT CAST(SUBSTRING(TABLE_NAME, 9) AS SIGNED),
       CAST(COALESCE(DATA_LENGTH, 0) + COALESCE(INDEX_LENGTH, 0) AS SIGNED)
  FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'message\_%'

-- The barrier before heads of a server without binary log are served (messagestore/heads/durability.py).

-- name: pulse
INSERT INTO node_pulse (worker, n) VALUES (:worker, 1) ON DUPLICATE KEY UPDATE n = n + 1

-- Failures (messagestore/retries/failures.py): who may report one, and what is copied. `origin` is read of failure
-- topics only.

-- name: select_fences
SELECT h.queue_id, h.head, h.low, r.epoch, r.owner, r.rewinds,
       CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(3)) * 1000 AS SIGNED)
  FROM queue_head h JOIN reader r ON r.queue_id = h.queue_id
 WHERE r.group_id = :group_id AND r.instance = '' AND h.queue_id IN ({queues})

-- name: select_failing
SELECT msg_offset, msg_key, tag, headers, body, trace_id,
       CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt, origin, producer
  FROM {table} WHERE msg_offset IN ({offsets}) ORDER BY msg_offset

-- name: select_copies
SELECT msg_offset, msg_key, tag, headers, body, trace_id,
       CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt, origin
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_stored_copies
SELECT batch_id, queue_id, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)
  FROM sent_batch WHERE batch_id IN ({batches}) AND queue_id <= 0
 UNION
SELECT batch_id, 0, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)
  FROM delayed_message WHERE batch_id IN ({batches})
 UNION
SELECT batch_id, -1, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED)
  FROM dead_message WHERE batch_id IN ({batches})

-- Copies of one message (messagestore/inspect/copy_trail.py), by ids that follow from the message.

-- name: select_batch_places
SELECT batch_id, queue_id, first_offset, message_count, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)
  FROM sent_batch WHERE batch_id IN ({batches})

-- name: select_waiting_copies
SELECT batch_id, id, CAST(UNIX_TIMESTAMP(due_at) * 1000 AS SIGNED), attempt, origin
  FROM delayed_message WHERE batch_id IN ({batches})

-- name: select_dead_copies
SELECT id, group_id, topic_id, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED), attempts, error_class, error,
       origin, msg_key, tag, trace_id, LENGTH(body), batch_id
  FROM dead_message WHERE group_id = :group_id AND batch_id IN ({batches})

-- name: count_waiting
SELECT queue_id, COUNT(*) FROM delayed_message WHERE queue_id IN ({queues}) GROUP BY queue_id

-- name: list_waiting
SELECT id, queue_id, CAST(UNIX_TIMESTAMP(due_at) * 1000 AS SIGNED), attempt, origin, msg_key, tag, LENGTH(body)
  FROM delayed_message WHERE queue_id IN ({queues}) ORDER BY due_at, id LIMIT :most

-- Dead messages (messagestore/retries/dead_letters.py). What is remembered of one in `sent_batch` has the queue -1. An INSERT
-- whose queue is closed, missing or of another node epoch stores nothing.

-- name: create_dead_table
CREATE TABLE IF NOT EXISTS dead_message (
    id          BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    batch_id    BINARY(16)   NOT NULL,
    group_id    BIGINT       NOT NULL,
    topic_id    BIGINT       NOT NULL,
    died_at     DATETIME(3)  NOT NULL,
    attempts    INT          NOT NULL,
    error_class VARCHAR(100) NOT NULL,
    error       TEXT         NOT NULL,
    origin      TEXT         NOT NULL,
    msg_key     VARCHAR(200) NULL,
    tag         VARCHAR(100) NULL,
    headers     MEDIUMTEXT   NULL,
    body        MEDIUMBLOB   NOT NULL,
    trace_id    VARCHAR(100) NULL,
    producer    VARCHAR(100) NOT NULL,
    UNIQUE KEY dead_message_batch (batch_id),
    KEY dead_message_group (group_id, died_at),
    KEY dead_message_topic (group_id, topic_id, died_at),
    KEY dead_message_error (group_id, error_class, died_at),
    KEY dead_message_both (group_id, topic_id, error_class, died_at),
    KEY dead_message_key (group_id, msg_key, died_at)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'dead letters of groups'

-- name: add_dead_key_index
ALTER TABLE dead_message ADD INDEX dead_message_key (group_id, msg_key, died_at), ALGORITHM=INPLACE, LOCK=NONE

-- name: insert_dead
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
SELECT :batch_id, -1, 0, 1, :batch_id, UTC_TIMESTAMP(3)
  FROM queue_head WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch;
INSERT INTO dead_message (batch_id, group_id, topic_id, died_at, attempts, error_class, error, origin,
                          msg_key, tag, headers, body, trace_id, producer)
SELECT :batch_id, :group_id, :topic_id, UTC_TIMESTAMP(3), :attempts, :error_class, :error, :origin,
       :msg_key, :tag, :headers, :body, :trace_id, :producer
  FROM queue_head WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch

-- name: list_dead
SELECT id, group_id, topic_id, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED), attempts, error_class, error,
       origin, msg_key, tag, trace_id, LENGTH(body)
  FROM dead_message FORCE INDEX ({by})
 WHERE {where} AND died_at <= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND
   AND (died_at < TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND OR id < :below)
 ORDER BY died_at DESC, id DESC LIMIT :most

-- A search reads a bounded stretch of the dead letters that an index selects, newest first.
-- name: find_dead_stretch
SELECT id, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED) FROM dead_message FORCE INDEX ({by})
 WHERE {where} AND died_at <= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND
   AND (died_at < TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND OR id < :below)
 ORDER BY died_at DESC, id DESC LIMIT 1 OFFSET :skipped

-- name: search_dead
SELECT id, group_id, topic_id, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED), attempts, error_class, error,
       origin, msg_key, tag, trace_id, LENGTH(body)
  FROM dead_message FORCE INDEX ({by})
 WHERE {where} AND died_at <= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND
   AND (died_at < TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND OR id < :below)
   AND died_at >= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :from_ms * 1000 MICROSECOND
   AND (died_at > TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :from_ms * 1000 MICROSECOND OR id >= :from_id)
   AND msg_key = :msg_key AND LENGTH(msg_key) = LENGTH(:msg_key)
 ORDER BY died_at DESC, id DESC LIMIT :most

-- name: search_dead_origin
SELECT id, group_id, topic_id, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED), attempts, error_class, error,
       origin, msg_key, tag, trace_id, LENGTH(body)
  FROM dead_message FORCE INDEX ({by})
 WHERE {where} AND died_at <= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND
   AND (died_at < TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :until_ms * 1000 MICROSECOND OR id < :below)
   AND died_at >= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :from_ms * 1000 MICROSECOND
   AND (died_at > TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :from_ms * 1000 MICROSECOND OR id >= :from_id)
   AND LEFT(origin, CHAR_LENGTH(:origin)) = :origin
 ORDER BY died_at DESC, id DESC LIMIT :most

-- name: summarize_dead
SELECT topic_id, error_class, COUNT(*), CAST(UNIX_TIMESTAMP(MIN(died_at)) * 1000 AS SIGNED),
       CAST(UNIX_TIMESTAMP(MAX(died_at)) * 1000 AS SIGNED)
  FROM dead_message FORCE INDEX (dead_message_both)
 WHERE {where} GROUP BY topic_id, error_class

-- name: tally_dead
SELECT group_id, COUNT(*), CAST(SUM(died_at >= UTC_TIMESTAMP(3) - INTERVAL :within_s SECOND) AS SIGNED),
       CAST(UNIX_TIMESTAMP(MAX(died_at)) * 1000 AS SIGNED)
  FROM dead_message FORCE INDEX (dead_message_group) GROUP BY group_id

-- name: select_dead
SELECT id, group_id, topic_id, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED), attempts, error_class, error,
       origin, msg_key, tag, trace_id, LENGTH(body), headers, body, batch_id
  FROM dead_message WHERE group_id = :group_id AND id IN ({ids}) ORDER BY id

-- name: select_dead_places
SELECT id, CAST(UNIX_TIMESTAMP(died_at) * 1000 AS SIGNED) FROM dead_message FORCE INDEX ({by})
 WHERE {where} AND id <= :upto AND died_at >= TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :from_ms * 1000 MICROSECOND
   AND (died_at > TIMESTAMP'1970-01-01 00:00:00' + INTERVAL :from_ms * 1000 MICROSECOND OR id > :after)
 ORDER BY died_at, id LIMIT :most

-- name: select_newest_dead
SELECT COALESCE(MAX(id), 0) FROM dead_message

-- name: count_dead
SELECT COUNT(*) FROM dead_message WHERE {where} AND id <= :upto

-- name: delete_dead
DELETE FROM dead_message WHERE group_id = :group_id AND id IN ({ids})

-- name: select_dead_pairs
SELECT DISTINCT group_id, topic_id FROM dead_message

-- name: delete_old_dead
DELETE FROM dead_message
 WHERE group_id = :group_id AND topic_id = :topic_id AND died_at < UTC_TIMESTAMP(3) - INTERVAL :days DAY
 ORDER BY died_at LIMIT :most

-- Look-ups (messagestore/inspect/search.py), in short ranges of offsets.

-- The comparison of columns ignores trailing blanks, so the lengths are compared as well. `only` may name offsets.
-- name: search_messages
SELECT msg_offset, msg_key, tag, headers, body, trace_id,
       CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt
  FROM {table} FORCE INDEX (PRIMARY) WHERE msg_offset >= :first_offset AND msg_offset < :end_offset
   AND (:msg_key IS NULL OR msg_key = :msg_key AND LENGTH(msg_key) = LENGTH(:msg_key))
   AND (:tag IS NULL OR tag = :tag AND LENGTH(tag) = LENGTH(:tag))
   AND (:trace_id IS NULL OR trace_id = :trace_id AND LENGTH(trace_id) = LENGTH(:trace_id))
   AND (:body_part IS NULL OR INSTR(body, :body_part) > 0)
   AND (:header_first IS NULL OR INSTR(headers, :header_first) = 1 OR INSTR(headers, :header_later) > 0)
 {only} ORDER BY msg_offset LIMIT :most

-- The last messages of a queue without bodies, for a filter that is tried (messagestore/inspect/tag_preview.py).

-- name: select_latest_headers
SELECT tag, headers FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset
 ORDER BY msg_offset DESC LIMIT :most

-- Delayed messages (messagestore/produce/delayed_store.py). In `sent_batch` a batch of them has no queue (0), and its first row
-- instead of an offset. A queue that is closed or missing makes @q NULL, rows that were not numbered one by one
-- make @d NULL: then the INSERT that follows fails with 1048.

-- name: delay_open
SET @t = UTC_TIMESTAMP(3),
    @q = (SELECT queue_id FROM queue_head
           WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch)

-- name: delay_rows
INSERT INTO delayed_message (queue_id, due_at, by_key, known_as, batch_id, position, msg_key, tag, headers, body,
                             trace_id, producer, stored_at, attempt, origin)
VALUES {rows}

-- name: delay_close
SET @d = (SELECT IF(MAX(id) = MIN(id) + :message_count - 1, MIN(id), NULL)
            FROM delayed_message WHERE batch_id = :batch_id);
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
VALUES (:batch_id, 0, @d, :message_count, :digest, @t);
SELECT CAST(@d AS SIGNED), CAST(UNIX_TIMESTAMP(@t) * 1000 AS SIGNED)

-- What is remembered of a batch, or, when that was trimmed, what its rows that still wait say.
-- name: select_delayed_batch
SELECT first_offset, digest, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)
  FROM sent_batch WHERE batch_id = :batch_id AND queue_id = 0
 UNION ALL
SELECT MIN(id - position), NULL, CAST(UNIX_TIMESTAMP(MIN(stored_at)) * 1000 AS SIGNED)
  FROM delayed_message WHERE batch_id = :batch_id HAVING COUNT(*) > 0

-- Delayed messages that are due (messagestore/produce/delayed_delivery.py). The first reads one index entry for each queue.

-- name: select_delayed_queues
SELECT queue_id, CAST(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), MIN(due_at)) DIV 1000 AS SIGNED)
  FROM delayed_message GROUP BY queue_id

-- name: select_due
SELECT id, by_key, msg_key, LENGTH(body) + COALESCE(LENGTH(headers), 0)
  FROM delayed_message WHERE queue_id = :queue AND due_at <= UTC_TIMESTAMP(3)
 ORDER BY due_at, id LIMIT :most

-- name: lock_head
SELECT queue_id, head FROM queue_head
 WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch FOR UPDATE

-- name: lock_delayed
SELECT id, queue_id, CAST(UNIX_TIMESTAMP(due_at) * 1000 AS SIGNED), by_key, known_as, msg_key, tag, headers, body,
       trace_id, producer, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt, origin
  FROM delayed_message WHERE id IN ({rows}) FOR UPDATE SKIP LOCKED

-- name: move_head
UPDATE queue_head SET head = :head, last_stored_at = GREATEST(UTC_TIMESTAMP(3), last_stored_at)
 WHERE queue_id = :queue;
SET @t = (SELECT last_stored_at FROM queue_head WHERE queue_id = :queue);
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at) VALUES {batches}

-- name: move_rows
INSERT INTO {table} (msg_offset, msg_key, tag, headers, body, trace_id, producer, stored_at, attempt, origin)
VALUES {rows}

-- name: delete_delayed
DELETE FROM delayed_message WHERE id IN ({rows})

-- name: retarget_delayed
UPDATE delayed_message SET queue_id = :target WHERE id = :row AND queue_id = :queue

-- What became of a row that left otherwise: no queue (0), and whether a message was made of it (1) or not (0).
-- name: leave_delayed
DELETE FROM delayed_message
 WHERE id = :row AND queue_id = :queue AND (:also_due OR due_at > UTC_TIMESTAMP(3));
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
SELECT :batch_id, 0, :queue, :message_count, :digest, UTC_TIMESTAMP(3) FROM DUAL WHERE ROW_COUNT() = 1

-- name: select_delayed
SELECT id, queue_id, CAST(UNIX_TIMESTAMP(due_at) * 1000 AS SIGNED), by_key, known_as, msg_key, tag, headers, body,
       trace_id, producer, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED), attempt, origin
  FROM delayed_message WHERE id IN ({rows}) ORDER BY id

-- name: select_delayed_ids
SELECT id, LENGTH(body) FROM delayed_message WHERE queue_id = :queue AND id > :after ORDER BY id LIMIT :most

-- Where every group stands, for /metrics: the readers first, so that none is above the head that is read with it.
-- name: select_figures
SELECT group_id, instance, queue_id, committed FROM reader;
SELECT queue_id, head, low FROM queue_head;
SELECT queue_id, from_offset, to_offset FROM queue_gap ORDER BY queue_id, from_offset;
SELECT CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(3)) * 1000 AS SIGNED)

-- What a backup is marked with (messagestore/nodes/backup_marks.py): readers first, so that none is above its head.
-- name: select_mark
SELECT group_id, instance, queue_id, epoch, committed FROM reader ORDER BY queue_id, group_id, instance;
SELECT queue_id, head, low, node_epoch FROM queue_head ORDER BY queue_id;
SELECT queue_id, from_offset, to_offset FROM queue_gap ORDER BY queue_id, from_offset;
SELECT (SELECT COALESCE(MAX(queue_id), 0) FROM queue_head),
       (SELECT COALESCE(MAX(group_id), 0) FROM reader),
       (SELECT COALESCE(MAX(group_id), 0) FROM dead_message),
       (SELECT COALESCE(MAX(topic_id), 0) FROM dead_message),
       (SELECT COALESCE(MAX(CAST(instance AS SIGNED)), 0) FROM reader WHERE instance <> '')

-- name: count_delayed_of_queues
SELECT queue_id, COUNT(*) FROM delayed_message GROUP BY queue_id

-- name: count_delayed
SELECT COUNT(*) FROM (SELECT 1 FROM delayed_message WHERE queue_id IN ({queues}) LIMIT :most) waiting

-- How many delayed messages there ever were, by the counter of their ids, and how many of them wait.
-- name: select_delayed_counts
SELECT CAST(COALESCE(AUTO_INCREMENT, 1) AS SIGNED) - 1 FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_name = 'delayed_message';
SELECT COUNT(*) FROM (SELECT 1 FROM delayed_message LIMIT :most) waiting

-- name: raise_delayed_ids
ALTER TABLE delayed_message AUTO_INCREMENT = :next_id

-- name: delete_queue_delayed
DELETE FROM delayed_message WHERE queue_id = :queue LIMIT :most

-- name: retarget_queue_delayed
UPDATE delayed_message SET queue_id = :target WHERE queue_id = :queue LIMIT :most

-- Share groups (messagestore/shares): how far a queue was leased, and the leases. The bits of `done` say which
-- offsets have left a run. `<=>` compares NULL, too.

-- name: create_share_tables
CREATE TABLE IF NOT EXISTS share_position (
    group_id    BIGINT NOT NULL,
    queue_id    BIGINT NOT NULL,
    epoch       BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    PRIMARY KEY (group_id, queue_id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'first offset that a share group has not finished in a queue';
CREATE TABLE IF NOT EXISTS share_run (
    group_id     BIGINT         NOT NULL,
    queue_id     BIGINT         NOT NULL,
    first_offset BIGINT         NOT NULL,
    end_offset   BIGINT         NOT NULL,
    epoch        BIGINT         NOT NULL,
    grant_no     BIGINT         NOT NULL,
    owner        VARCHAR(150)   NOT NULL,
    lease_until  DATETIME(3)    NOT NULL,
    deliveries   INT            NOT NULL,
    done         VARBINARY(128) NULL,
    PRIMARY KEY (group_id, queue_id, first_offset, end_offset)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT 'messages that members of share groups have leased'

-- name: select_share_views
SELECT h.queue_id, h.head, h.low, r.epoch, r.committed, p.epoch, p.next_offset
  FROM queue_head h
  JOIN reader r ON r.queue_id = h.queue_id AND r.group_id = :group_id AND r.instance = ''
  LEFT JOIN share_position p ON p.queue_id = h.queue_id AND p.group_id = :group_id
 WHERE h.queue_id IN ({queues});
SELECT queue_id, COUNT(*), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), MIN(lease_until))
  FROM share_run WHERE group_id = :group_id AND queue_id IN ({queues}) GROUP BY queue_id

-- The position before the runs: who takes holds its lock, so no run of an older epoch comes after it is gone.
-- name: start_share
DELETE FROM share_position
 WHERE group_id = :group_id AND queue_id = :queue
   AND epoch < (SELECT epoch FROM reader WHERE group_id = :group_id AND instance = '' AND queue_id = :queue);
INSERT IGNORE INTO share_position (group_id, queue_id, epoch, next_offset)
SELECT group_id, queue_id, epoch, committed
  FROM reader WHERE group_id = :group_id AND instance = '' AND queue_id = :queue;
DELETE FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue
   AND epoch < (SELECT epoch FROM reader WHERE group_id = :group_id AND instance = '' AND queue_id = :queue)

-- name: lock_position
SELECT epoch, next_offset FROM share_position
 WHERE group_id = :group_id AND queue_id = :queue FOR UPDATE

-- name: take_run
INSERT INTO share_run (group_id, queue_id, first_offset, end_offset, epoch, grant_no, owner, lease_until, deliveries)
SELECT group_id, queue_id, GREATEST(next_offset, :from_offset),
       LEAST(GREATEST(next_offset, :from_offset) + :messages, :end_offset), epoch, 1, :owner,
       UTC_TIMESTAMP(3) + INTERVAL :lease_us MICROSECOND, :deliveries
  FROM share_position
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch
   AND GREATEST(next_offset, :from_offset) < :end_offset;
UPDATE share_position SET next_offset = LEAST(GREATEST(next_offset, :from_offset) + :messages, :end_offset)
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch
   AND GREATEST(next_offset, :from_offset) < :end_offset

-- name: select_due_runs
SELECT first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch AND lease_until <= UTC_TIMESTAMP(3)
   AND (deliveries >= :limit_at AND end_offset = first_offset + 1) = :at_limit
 ORDER BY first_offset, end_offset LIMIT :most

-- name: select_over_runs
SELECT first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch AND first_offset < :below
   AND lease_until <= UTC_TIMESTAMP(3)
 ORDER BY first_offset, end_offset LIMIT :most

-- name: take_over_run
UPDATE share_run SET grant_no = grant_no + 1, owner = :owner, deliveries = deliveries + :counted,
                     lease_until = UTC_TIMESTAMP(3) + INTERVAL :lease_us MICROSECOND
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done <=> :seen AND lease_until <= UTC_TIMESTAMP(3)

-- name: select_shares
SELECT first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset IN ({offsets})

-- name: mark_run
UPDATE share_run SET done = :done
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done <=> :seen

-- name: delete_run
DELETE FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done <=> :seen

-- name: finish_run
DELETE FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no

-- It follows the statement that made the offsets leave another run, or another of these.
-- name: add_run
INSERT INTO share_run (group_id, queue_id, first_offset, end_offset, epoch, grant_no, owner, lease_until, deliveries)
SELECT :group_id, :queue, :first_offset, :end_offset, :epoch, :grant_no, :owner,
       UTC_TIMESTAMP(3) + INTERVAL :lease_us MICROSECOND, :deliveries FROM DUAL WHERE ROW_COUNT() = 1

-- name: release_run
UPDATE share_run SET grant_no = grant_no + 1, owner = '', lease_until = UTC_TIMESTAMP(3)
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done <=> :seen

-- name: renew_run
UPDATE share_run SET owner = :owner, lease_until = UTC_TIMESTAMP(3) + INTERVAL :lease_us MICROSECOND
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no

-- name: count_run
UPDATE share_run SET deliveries = :deliveries
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND deliveries BETWEEN :delivery - 1 AND :delivery

-- name: free_runs_of
UPDATE share_run SET owner = '', lease_until = UTC_TIMESTAMP(3) WHERE group_id = :group_id AND owner = :owner

-- name: end_leases
UPDATE share_run SET owner = '', lease_until = UTC_TIMESTAMP(3)
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset
   AND lease_until > UTC_TIMESTAMP(3)

-- name: select_held_runs
SELECT queue_id, first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id IN ({queues}) AND owner = :owner ORDER BY queue_id, first_offset
 LIMIT :most

-- One statement, so that a run and the position that moved behind it are seen together or not at all.
-- name: select_floor
SELECT p.epoch, p.next_offset, r.first_offset, r.end_offset, r.done
  FROM share_position p
  LEFT JOIN share_run r ON r.group_id = p.group_id AND r.queue_id = p.queue_id AND r.epoch = p.epoch
 WHERE p.group_id = :group_id AND p.queue_id = :queue ORDER BY r.first_offset, r.end_offset LIMIT :most

-- name: select_queue_shares
SELECT p.group_id, p.epoch, p.next_offset, r.first_offset, r.end_offset, r.epoch, r.grant_no, r.owner, r.deliveries,
       r.done
  FROM share_position p
  LEFT JOIN share_run r ON r.group_id = p.group_id AND r.queue_id = p.queue_id AND r.epoch = p.epoch
 WHERE p.queue_id = :queue

-- name: raise_committed
UPDATE reader SET committed = :position
 WHERE group_id = :group_id AND instance = '' AND queue_id = :queue AND epoch = :epoch AND committed < :position

-- name: select_share_runs
SELECT queue_id, first_offset, end_offset, epoch, grant_no, owner, deliveries, done,
       TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), lease_until)
  FROM share_run WHERE group_id = :group_id AND queue_id IN ({queues})
 ORDER BY queue_id, first_offset, end_offset LIMIT :most

-- What share groups have yet to finish, of all queues (messagestore/inspect/node_counts.py).
-- name: select_leased
SELECT p.group_id, p.queue_id, p.next_offset
  FROM share_position p
  JOIN reader a ON a.group_id = p.group_id AND a.queue_id = p.queue_id AND a.epoch = p.epoch;
SELECT r.group_id, r.queue_id, r.end_offset - r.first_offset, r.done
  FROM share_run r
  JOIN share_position p ON p.group_id = r.group_id AND p.queue_id = r.queue_id AND p.epoch = r.epoch

-- name: delete_shares
DELETE FROM share_position WHERE group_id = :group_id AND queue_id IN ({queues}) AND epoch < :below;
DELETE FROM share_run WHERE group_id = :group_id AND queue_id IN ({queues}) AND epoch < :below

-- name: delete_queue_shares
DELETE FROM share_position WHERE queue_id = :queue;
DELETE FROM share_run WHERE queue_id = :queue
