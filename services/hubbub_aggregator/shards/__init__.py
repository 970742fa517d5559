"""One logical aggregator as several processes: a head that decides, and workers that each do a range of chunks.

The head is the aggregator: its machines, its journal, its receipts. Workers take chunks from queues of their own,
check their signatures and put them on the disk that all share, and open, add and send them when the head says so.
They know no state of the protocol, so one that dies is replaced by another that begins with nothing.
"""
