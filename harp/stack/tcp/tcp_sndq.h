/* SPDX-License-Identifier: Apache-2.0 */
/* The send queue: references to bytes, and transmit records. */
#ifndef HARP_STACK_TCP_SNDQ_H
#define HARP_STACK_TCP_SNDQ_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct harp_packet;
struct harp_tcp;
/* A reference in the send queue, to bytes that stay unchanged until they are acknowledged. */
struct harp_reference {
  struct harp_reference *next;
  const uint8_t *data;
  struct harp_packet *packet; /* a socket's packet buffer that holds the bytes, else NULL */
  uint32_t seq;
  uint32_t length;
  bool end; /* a segment ends with this reference */
};

/* The state of a transmit record. It says in which list older and newer link the record. */
enum record_state {
  RECORD_IN_FLIGHT,     /* the list by send time (RFC 8985, 5.1) */
  RECORD_LOST,          /* the retransmission queue */
  RECORD_RETRANSMITTED, /* in flight again after a loss: the list by send time */
  RECORD_SACKED,        /* the list of SACKed blocks; adjacent records are merged into one */
};

/* A transmit record: a range of sequence space that was sent at one time. */
struct harp_record {
  struct harp_record *prev, *next;   /* all records, by sequence */
  struct harp_record *older, *newer; /* the records of one list */
  struct harp_reference *reference;  /* holds the byte at seq; NULL: a bare FIN */
  uint64_t sent;                     /* ns */
  uint32_t seq, end;
  uint16_t transmits;
  uint8_t state; /* enum record_state */
  bool fin;      /* the last number of the range is the FIN */
};

/* Appends a reference. packet: the packet buffer that holds the bytes, which the queue then owns;
 * NULL: the owner keeps them. -ENOBUFS: too many references, or none is free; the caller keeps
 * packet. */
int tcp_sndq_push(struct harp_tcp *tcp, const void *data, uint32_t length,
                  struct harp_packet *packet);
/* The last reference has grown by length bytes. */
void tcp_sndq_extend(struct harp_tcp *tcp, uint32_t length);
/* Frees the references whose bytes are all below una. */
void tcp_sndq_release(struct harp_tcp *tcp, uint32_t una);
/* Frees all records and references. */
void tcp_sndq_clear(struct harp_tcp *tcp);
/* Builds the gather list of [seq, seq + length). Returns the entries used. *covered: their bytes;
 * fewer than length if max is too small, or if a segment must end earlier. */
int tcp_sndq_gather(const struct harp_reference *reference, uint32_t seq, uint32_t length,
                    struct iovec *iov, int max, uint32_t *covered);
/* Returns the reference that holds the byte at seq: this one or a later one. NULL: seq is beyond
 * the last one. */
struct harp_reference *tcp_sndq_seek(struct harp_reference *reference, uint32_t seq);
/* Adds the record of [seq, end), which was sent now. reference: holds the byte at seq. The caller
 * has found a free record. */
void tcp_record_append(struct harp_tcp *tcp, uint32_t seq, uint32_t end,
                       struct harp_reference *reference, bool fin);
/* Splits a record at seq, which lies within it. The record is not SACKed. Returns the right part;
 * NULL: no memory. */
struct harp_record *tcp_record_split(struct harp_tcp *tcp, struct harp_record *record,
                                     uint32_t seq);
/* Removes a record from both of its lists and frees it. */
void tcp_record_free(struct harp_tcp *tcp, struct harp_record *record);
/* The record was sent now: sets its time and appends it to the list by send time. RACK compares
 * send times, and sequence numbers if the times are equal (RFC 8985, 6.2). So a retransmission gets
 * a time at least 1 ns later than the newest record in flight, even if that is ahead of the clock.
 */
void tcp_record_sent(struct harp_tcp *tcp, struct harp_record *record);
/* Appends a record in flight to the list by send time. */
void tcp_record_in_flight(struct harp_tcp *tcp, struct harp_record *record);
/* Removes a record from the list of its state. */
void tcp_record_unlink(struct harp_tcp *tcp, struct harp_record *record);
/* Appends a record to the retransmission queue. */
void tcp_record_queue_lost(struct harp_tcp *tcp, struct harp_record *record);
/* Inserts a record into the list of SACKed blocks after run; NULL: as the first. */
void tcp_record_link_sacked(struct harp_tcp *tcp, struct harp_record *record,
                            struct harp_record *run);

#endif
